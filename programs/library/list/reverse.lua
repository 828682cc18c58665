-- reverse(list): from last to first.

-- A map is a table too.
local function is_list(value)
    return type(value) == "table" and (#value > 0 or next(value) == nil)
end

local list = args[1]
if not is_list(list) then
    return Outcome.error{ error_type = "invalid_argument", error_message = "reverse needs a list" }
end
local reversed = array{}
for index = #list, 1, -1 do
    table.insert(reversed, list[index])
end
return reversed
