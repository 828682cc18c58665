-- expect: time | memory
-- Snapshots of a wide context for ever.
for i = 1, 3000 do context["k" .. i] = i end
while true do for k in pairs(context) do break end end
