-- median(list): the number in the middle, or half-way between the two in the middle.

-- A map is a table too.
local function is_list(value)
    return type(value) == "table" and (#value > 0 or next(value) == nil)
end

local list = args[1]
if not is_list(list) or #list == 0 then
    return Outcome.error{ error_type = "invalid_argument", error_message = "median needs a list of one number or more" }
end
local sorted = {}
for index, number in ipairs(list) do
    if type(number) ~= "number" then
        return Outcome.error{ error_type = "invalid_argument", error_message = `median: item {index} is not a number` }
    end
    sorted[index] = number
end
table.sort(sorted)
local middle = #sorted // 2
if #sorted % 2 == 1 then
    return sorted[middle + 1]
end
return (sorted[middle] + sorted[middle + 1]) / 2
