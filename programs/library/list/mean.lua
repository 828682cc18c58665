-- mean(list): the arithmetic mean.

-- A map is a table too.
local function is_list(value)
    return type(value) == "table" and (#value > 0 or next(value) == nil)
end

local list = args[1]
if not is_list(list) or #list == 0 then
    return Outcome.error{ error_type = "invalid_argument", error_message = "mean needs a list of one number or more" }
end
local total = 0
for index, number in ipairs(list) do
    if type(number) ~= "number" then
        return Outcome.error{ error_type = "invalid_argument", error_message = `mean: item {index} is not a number` }
    end
    total += number
end
return total / #list
