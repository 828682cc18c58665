-- join(parts, separator): one text made of all parts; the separator is a blank when none is given.

-- A map is a table too.
local function is_list(value)
    return type(value) == "table" and (#value > 0 or next(value) == nil)
end

local parts, separator = args[1], args[2] or kwargs.separator or " "
if not is_list(parts) or type(separator) ~= "string" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "join needs a list and a separator" }
end
local texts = {}
for index, part in ipairs(parts) do
    if type(part) ~= "string" and type(part) ~= "number" then
        return Outcome.error{
            error_type = "invalid_argument",
            error_message = `join: part {index} is neither text nor number`,
        }
    end
    texts[index] = tostring(part)
end
return table.concat(texts, separator)
