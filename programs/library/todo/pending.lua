-- pending(): the items that are not done.
local open = array{}
for _, item in ipairs(context.items or array{}) do
    if not item.done then
        table.insert(open, item)
    end
end
return open
