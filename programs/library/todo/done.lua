-- done(): the items that are done.
local closed = array{}
for _, item in ipairs(context.items or array{}) do
    if item.done then
        table.insert(closed, item)
    end
end
return closed
