-- standard_deviation(list): of the whole population; standard_deviation(list, {sample = true}): of a sample.

-- A map is a table too.
local function is_list(value)
    return type(value) == "table" and (#value > 0 or next(value) == nil)
end

local list = args[1]
local least = if kwargs.sample then 2 else 1
if not is_list(list) or #list < least then
    return Outcome.error{
        error_type = "invalid_argument",
        error_message = "standard_deviation needs a list of numbers",
    }
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
