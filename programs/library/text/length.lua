-- length(text): how many letters it has; a letter of several bytes counts once.
local text = args[1]
if type(text) ~= "string" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "length needs a text" }
end
return utf8.len(text)
