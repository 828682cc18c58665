-- clear(): empties the list and returns how many items were on it.
local count = #(context.items or array{})
context.items = array{}
return count
