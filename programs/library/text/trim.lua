-- trim(text): without blanks and line breaks at both ends.
local text = args[1]
if type(text) ~= "string" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "trim needs a text" }
end
return string.match(text, "^%s*(.-)%s*$")
