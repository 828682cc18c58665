-- add(title, {due = "...", priority = "..."}): puts an item on the list and returns it.
local title = args[1] or kwargs.title
if type(title) == "string" then
    title = string.match(title, "^%s*(.-)%s*$")
end
if type(title) ~= "string" or title == "" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "add needs a title" }
end
local items = context.items or array{}
local item = {
    id = (context.last_id or 0) + 1,
    title = title,
    done = false,
    due = kwargs.due,
    priority = kwargs.priority,
}
table.insert(items, item)
context.items = items
context.last_id = item.id
return item
