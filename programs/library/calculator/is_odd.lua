-- is_odd(n): whether n leaves one when divided by two.
local number = args[1]
if type(number) ~= "number" or number % 1 ~= 0 then
    return Outcome.error{ error_type = "invalid_argument", error_message = "is_odd needs a whole number" }
end
return number % 2 == 1
