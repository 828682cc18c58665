-- mean(list): the arithmetic mean.
local list = args[1]
if type(list) ~= "table" or #list == 0 then
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
