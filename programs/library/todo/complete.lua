-- complete(id) or complete(title): marks an item as done and returns it.
local wanted = args[1] or kwargs.id or kwargs.title
if wanted == nil or wanted == null then
    return Outcome.error{ error_type = "invalid_argument", error_message = "complete needs an id or a title" }
end
local items = context.items or array{}
for _, item in ipairs(items) do
    if item.id == wanted or item.title == wanted then
        item.done = true
        context.items = items
        return item
    end
end
return Outcome.error{ error_type = "not_found", error_message = `there is no item {wanted} on the list` }
