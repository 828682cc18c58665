-- describe(list): count, sum, mean, median, min and max of a list of numbers.

-- A map is a table too.
local function is_list(value)
    return type(value) == "table" and (#value > 0 or next(value) == nil)
end

local list = args[1]
if not is_list(list) or #list == 0 then
    return Outcome.error{
        error_type = "invalid_argument",
        error_message = "describe needs a list of one number or more",
    }
end
local total, sorted = 0, {}
for index, number in ipairs(list) do
    if type(number) ~= "number" then
        return Outcome.error{
            error_type = "invalid_argument",
            error_message = `describe: item {index} is not a number`,
        }
    end
    total += number
    sorted[index] = number
end
table.sort(sorted)
local count = #sorted
local middle = count // 2
return {
    count = count,
    sum = total,
    mean = total / count,
    median = if count % 2 == 1 then sorted[middle + 1] else (sorted[middle] + sorted[middle + 1]) / 2,
    min = sorted[1],
    max = sorted[count],
}
