-- last(list): its last item, null when it is empty. last(list, n): its last n items.

-- A map is a table too.
local function is_list(value)
    return type(value) == "table" and (#value > 0 or next(value) == nil)
end

local list, count = args[1], args[2]
if not is_list(list) then
    return Outcome.error{ error_type = "invalid_argument", error_message = "last needs a list" }
end
if count == nil then
    return list[#list]
end
if type(count) ~= "number" or count < 0 or count % 1 ~= 0 then
    return Outcome.error{ error_type = "invalid_argument", error_message = "last: how many must be a whole number" }
end
local items = array{}
for index = math.max(1, #list - count + 1), #list do
    table.insert(items, list[index])
end
return items
