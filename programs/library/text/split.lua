-- split(text, separator): its parts; the separator is a comma when none is given.
local text, separator = args[1], args[2] or kwargs.separator or ","
if type(text) ~= "string" or type(separator) ~= "string" or separator == "" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "split needs a text and a separator" }
end
return string.split(text, separator)
