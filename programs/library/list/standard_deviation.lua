-- standard_deviation(list): of the whole population; standard_deviation(list, {sample = true}): of a sample.
local list = args[1]
local least = if kwargs.sample then 2 else 1
if type(list) ~= "table" or #list < least then
    return Outcome.error{ error_type = "invalid_argument", error_message = "standard_deviation needs a list of numbers" }
end
local total = 0
for index, number in ipairs(list) do
    if type(number) ~= "number" then
        local message = `standard_deviation: item {index} is not a number`
        return Outcome.error{ error_type = "invalid_argument", error_message = message }
    end
    total += number
end
local mean, squares = total / #list, 0
for _, number in ipairs(list) do
    squares += (number - mean) * (number - mean)
end
return math.sqrt(squares / (#list - least + 1))
