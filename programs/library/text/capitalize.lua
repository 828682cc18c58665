-- capitalize(text): the first letter capital, the rest as it is.
local text = args[1]
if type(text) ~= "string" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "capitalize needs a text" }
end
return string.upper(string.sub(text, 1, 1)) .. string.sub(text, 2)
