-- max(a, b, ...) or max({a, b, ...}): the largest number.
local numbers = if #args == 1 and type(args[1]) == "table" then args[1] else args
local largest = nil
for index = 1, #numbers do
    local number = numbers[index]
    if type(number) ~= "number" then
        return Outcome.error{ error_type = "invalid_argument", error_message = `max: item {index} is not a number` }
    end
    if largest == nil or number > largest then
        largest = number
    end
end
if largest == nil then
    return Outcome.error{ error_type = "invalid_argument", error_message = "max needs one number or more" }
end
return largest
