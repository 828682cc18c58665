-- reverse(list): from last to first.
local list = args[1]
if type(list) ~= "table" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "reverse needs a list" }
end
local reversed = array{}
for index = #list, 1, -1 do
    table.insert(reversed, list[index])
end
return reversed
