-- average(a, b, ...) or average({a, b, ...}): the arithmetic mean.
local numbers = if #args == 1 and type(args[1]) == "table" then args[1] else args
if #numbers == 0 then
    return Outcome.error{ error_type = "invalid_argument", error_message = "average needs one number or more" }
end
local total = 0
for index = 1, #numbers do
    if type(numbers[index]) ~= "number" then
        return Outcome.error{ error_type = "invalid_argument", error_message = `average: item {index} is not a number` }
    end
    total += numbers[index]
end
return total / #numbers
