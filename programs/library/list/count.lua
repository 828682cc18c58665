-- count(list): how many items. count(list, value): how many of them equal the value.
local list = args[1]
if type(list) ~= "table" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "count needs a list" }
end
if #args < 2 then
    return #list
end
local count = 0
for _, item in ipairs(list) do
    if item == args[2] then
        count += 1
    end
end
return count
