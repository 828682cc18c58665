-- starts_with(text, part): whether the text begins with the part.
local text, part = args[1], args[2] or kwargs.part
if type(text) ~= "string" or type(part) ~= "string" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "starts_with needs a text and a part" }
end
return string.sub(text, 1, #part) == part
