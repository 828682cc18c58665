-- list(): all items, in the order in which they were added.
return context.items or array{}
