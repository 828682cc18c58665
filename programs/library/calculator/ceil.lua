-- ceil(x): the smallest whole number that is not below x.
local number = args[1]
if type(number) ~= "number" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "ceil needs a number" }
end
return math.ceil(number)
