-- first(list): its first item, null when it is empty. first(list, n): its first n items.

-- A map is a table too.
local function is_list(value)
    return type(value) == "table" and (#value > 0 or next(value) == nil)
end

local list, count = args[1], args[2]
if not is_list(list) then
    return Outcome.error{ error_type = "invalid_argument", error_message = "first needs a list" }
end
if count == nil then
    return list[1]
end
if type(count) ~= "number" or count < 0 or count % 1 ~= 0 then
    return Outcome.error{ error_type = "invalid_argument", error_message = "first: how many must be a whole number" }
end
local items = array{}
for index = 1, math.min(count, #list) do
    items[index] = list[index]
end
return items
