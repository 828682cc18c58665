-- sum(a, b, ...) or sum({a, b, ...}): all numbers added up; nothing adds up to 0.
local numbers = if #args == 1 and type(args[1]) == "table" then args[1] else args
local total = 0
for index = 1, #numbers do
    if type(numbers[index]) ~= "number" then
        return Outcome.error{ error_type = "invalid_argument", error_message = `sum: item {index} is not a number` }
    end
    total += numbers[index]
end
return total
