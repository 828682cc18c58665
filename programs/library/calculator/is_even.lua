-- is_even(n): whether n divides by two.
local number = args[1]
if type(number) ~= "number" or number % 1 ~= 0 then
    return Outcome.error{ error_type = "invalid_argument", error_message = "is_even needs a whole number" }
end
return number % 2 == 0
