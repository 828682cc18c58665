-- zip(a, b): pairs of the items at the same place; it ends with the shorter list.
local left, right = args[1], args[2]
if type(left) ~= "table" or type(right) ~= "table" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "zip needs two lists" }
end
local pairs_of_items = array{}
for index = 1, math.min(#left, #right) do
    pairs_of_items[index] = { left[index], right[index] }
end
return pairs_of_items
