-- sum(list): all numbers added up; an empty list adds up to 0.

-- A map is a table too.
local function is_list(value)
    return type(value) == "table" and (#value > 0 or next(value) == nil)
end

local list = args[1]
if not is_list(list) then
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
