-- unique(list): each value once, in the order of first appearance.
local list = args[1]
if type(list) ~= "table" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "unique needs a list" }
end
local seen, result = {}, array{}
for _, item in ipairs(list) do
    if type(item) == "table" then
        return Outcome.error{ error_type = "invalid_argument", error_message = "unique compares plain values, not lists or maps" }
    end
    if not seen[item] then
        seen[item] = true
        table.insert(result, item)
    end
end
return result
