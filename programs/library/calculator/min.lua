-- min(a, b, ...) or min({a, b, ...}): the smallest number.

-- A map is a table too.
local function is_list(value)
    return type(value) == "table" and (#value > 0 or next(value) == nil)
end

local numbers = if #args == 1 and is_list(args[1]) then args[1] else args
local smallest = nil
for index = 1, #numbers do
    local number = numbers[index]
    if type(number) ~= "number" then
        return Outcome.error{ error_type = "invalid_argument", error_message = `min: item {index} is not a number` }
    end
    if smallest == nil or number < smallest then
        smallest = number
    end
end
if smallest == nil then
    return Outcome.error{ error_type = "invalid_argument", error_message = "min needs one number or more" }
end
return smallest
