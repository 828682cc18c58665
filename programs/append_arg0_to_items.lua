local items = context.items or array{}
table.insert(items, args[1])
context.items = items
return #items
