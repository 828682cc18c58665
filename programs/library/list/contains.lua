-- contains(list, value): whether the value is in the list.
local list, value = args[1], args[2]
if type(list) ~= "table" or #args < 2 then
    return Outcome.error{ error_type = "invalid_argument", error_message = "contains needs a list and a value" }
end
return table.find(list, value) ~= nil
