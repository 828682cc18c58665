-- sum(a, b, ...) or sum({a, b, ...}): all numbers added up; nothing adds up to 0.

-- A map is a table too.
local function is_list(value)
    return type(value) == "table" and (#value > 0 or next(value) == nil)
end

local numbers = if #args == 1 and is_list(args[1]) then args[1] else args
local total = 0
for index = 1, #numbers do
    if type(numbers[index]) ~= "number" then
        return Outcome.error{ error_type = "invalid_argument", error_message = `sum: item {index} is not a number` }
    end
    total += numbers[index]
end
return total
