-- ends_with(text, part): whether the text ends with the part.
local text, part = args[1], args[2] or kwargs.part
if type(text) ~= "string" or type(part) ~= "string" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "ends_with needs a text and a part" }
end
return part == "" or string.sub(text, -#part) == part
