-- remove(id) or remove(title): takes an item off the list and returns it.
local wanted = args[1] or kwargs.id or kwargs.title
if wanted == nil or wanted == null then
    return Outcome.error{ error_type = "invalid_argument", error_message = "remove needs an id or a title" }
end
local kept, removed = array{}, nil
for _, item in ipairs(context.items or array{}) do
    if removed == nil and (item.id == wanted or item.title == wanted) then
        removed = item
    else
        table.insert(kept, item)
    end
end
if removed == nil then
    return Outcome.error{ error_type = "not_found", error_message = `there is no item {wanted} on the list` }
end
context.items = kept
return removed
