-- zip(a, b): pairs of the items at the same place; it ends with the shorter list.

-- A map is a table too.
local function is_list(value)
    return type(value) == "table" and (#value > 0 or next(value) == nil)
end

local left, right = args[1], args[2]
if not is_list(left) or not is_list(right) then
    return Outcome.error{ error_type = "invalid_argument", error_message = "zip needs two lists" }
end
local pairs_of_items = array{}
for index = 1, math.min(#left, #right) do
    pairs_of_items[index] = { left[index], right[index] }
end
return pairs_of_items
