-- square(x): x times x.
local number = args[1]
if type(number) ~= "number" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "square needs a number" }
end
return number * number
