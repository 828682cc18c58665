-- sort(list): from small to large; all numbers or all texts. sort(list, {descending = true}): from large to small.

-- A map is a table too.
local function is_list(value)
    return type(value) == "table" and (#value > 0 or next(value) == nil)
end

local list = args[1]
if not is_list(list) then
    return Outcome.error{ error_type = "invalid_argument", error_message = "sort needs a list" }
end
local sorted = array{}
for index, item in ipairs(list) do
    if type(item) ~= type(list[1]) or (type(item) ~= "number" and type(item) ~= "string") then
        return Outcome.error{ error_type = "invalid_argument", error_message = "sort needs all numbers or all texts" }
    end
    sorted[index] = item
end
if kwargs.descending then
    table.sort(sorted, function(a, b) return a > b end)
else
    table.sort(sorted)
end
return sorted
