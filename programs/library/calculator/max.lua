-- max(a, b, ...) or max({a, b, ...}): the largest number.

-- A map is a table too.
local function is_list(value)
    return type(value) == "table" and (#value > 0 or next(value) == nil)
end

local numbers = if #args == 1 and is_list(args[1]) then args[1] else args
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
