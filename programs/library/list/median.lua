-- median(list): the number in the middle, or half-way between the two in the middle.
local list = args[1]
if type(list) ~= "table" or #list == 0 then
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
