-- sum(list): all numbers added up; an empty list adds up to 0.
local list = args[1]
if type(list) ~= "table" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "sum needs a list of numbers" }
end
local total = 0
for index, number in ipairs(list) do
    if type(number) ~= "number" then
        return Outcome.error{ error_type = "invalid_argument", error_message = `sum: item {index} is not a number` }
    end
    total += number
end
return total
