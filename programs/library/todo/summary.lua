-- summary(): how many items there are, how many are done and how many are not.
local total, done = 0, 0
for _, item in ipairs(context.items or array{}) do
    total += 1
    if item.done then
        done += 1
    end
end
return { total = total, done = done, pending = total - done }
