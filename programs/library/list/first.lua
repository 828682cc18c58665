-- first(list): its first item, null when it is empty. first(list, n): its first n items.
local list, count = args[1], args[2]
if type(list) ~= "table" then
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
