-- index_of(list, value): its position counted from 1, in every program language; null when it is not there.

-- A map is a table too.
local function is_list(value)
    return type(value) == "table" and (#value > 0 or next(value) == nil)
end

local list, value = args[1], args[2]
if not is_list(list) or #args < 2 then
    return Outcome.error{ error_type = "invalid_argument", error_message = "index_of needs a list and a value" }
end
return table.find(list, value)
