-- is_prime(n): whether n > 1 and only 1 and n divide it. Up to 10^12, so that it ends well within its limits.
local number = args[1]
if type(number) ~= "number" or number % 1 ~= 0 then
    return Outcome.error{ error_type = "invalid_argument", error_message = "is_prime needs a whole number" }
end
if number > 1e12 then
    return Outcome.error{ error_type = "out_of_range", error_message = "is_prime answers up to 1000000000000" }
end
if number < 4 then
    return number > 1
end
if number % 2 == 0 or number % 3 == 0 then
    return false
end
-- Every other prime is one below or one above a multiple of six.
local divisor = 5
while divisor * divisor <= number do
    if number % divisor == 0 or number % (divisor + 2) == 0 then
        return false
    end
    divisor += 6
end
return true
