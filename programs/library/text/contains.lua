-- contains(text, part): whether the part occurs in the text.
local text, part = args[1], args[2] or kwargs.part
if type(text) ~= "string" or type(part) ~= "string" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "contains needs a text and a part" }
end
return string.find(text, part, 1, true) ~= nil
