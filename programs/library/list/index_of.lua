-- index_of(list, value): its position counted from 1, in every program language; null when it is not there.
local list, value = args[1], args[2]
if type(list) ~= "table" or #args < 2 then
    return Outcome.error{ error_type = "invalid_argument", error_message = "index_of needs a list and a value" }
end
return table.find(list, value)
