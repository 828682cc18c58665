-- negate(x): x with the other sign.
local number = args[1]
if type(number) ~= "number" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "negate needs a number" }
end
return -number
