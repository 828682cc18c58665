-- expect: time | memory
-- next from keys in descending order.
local t = {}
for i = 1, 3000 do t["k" .. i] = i end
while true do for i = 3000, 1, -1 do next(t, "k" .. i) end end
