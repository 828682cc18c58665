-- min(list): the smallest of all numbers, or of all texts.

-- A map is a table too.
local function is_list(value)
    return type(value) == "table" and (#value > 0 or next(value) == nil)
end

local list = args[1]
if not is_list(list) or #list == 0 then
    return Outcome.error{ error_type = "invalid_argument", error_message = "min needs a list of one item or more" }
end
local smallest = list[1]
for _, item in ipairs(list) do
    if type(item) ~= type(smallest) or (type(item) ~= "number" and type(item) ~= "string") then
        return Outcome.error{ error_type = "invalid_argument", error_message = "min needs all numbers or all texts" }
    end
    if item < smallest then
        smallest = item
    end
end
return smallest
