-- gcd(a, b, ...): the greatest common divisor, by Euclid's algorithm.
if #args == 0 then
    return Outcome.error{ error_type = "invalid_argument", error_message = "gcd needs whole numbers" }
end
local divisor = 0
for index = 1, #args do
    local number = args[index]
    if type(number) ~= "number" or number % 1 ~= 0 then
        return Outcome.error{ error_type = "invalid_argument", error_message = "gcd needs whole numbers" }
    end
    number = math.abs(number)
    while number ~= 0 do
        divisor, number = number, divisor % number
    end
end
return divisor
