-- fibonacci(n): the n-th Fibonacci number, from fibonacci(0) = 0 to fibonacci(78), the last one held exactly.
local number = args[1]
if type(number) ~= "number" or number % 1 ~= 0 then
    return Outcome.error{ error_type = "invalid_argument", error_message = "fibonacci needs a whole number" }
end
if number < 0 or number > 78 then
    return Outcome.error{ error_type = "out_of_range", error_message = "fibonacci answers from 0 to 78" }
end
local current, following = 0, 1
for _ = 1, number do
    current, following = following, current + following
end
return current
