-- unique(list): each value once, in the order of first appearance.

-- A map is a table too.
local function is_list(value)
    return type(value) == "table" and (#value > 0 or next(value) == nil)
end

local list = args[1]
if not is_list(list) then
    return Outcome.error{ error_type = "invalid_argument", error_message = "unique needs a list" }
end
local seen, result = {}, array{}
for _, item in ipairs(list) do
    if type(item) == "table" then
        return Outcome.error{
            error_type = "invalid_argument",
            error_message = "unique compares plain values, not lists or maps",
        }
    end
    if not seen[item] then
        seen[item] = true
        table.insert(result, item)
    end
end
return result
