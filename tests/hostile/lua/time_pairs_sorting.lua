-- expect: time | memory
-- Sorting the keys of a large map again and again.
local t = {}
for i = 1, 20000 do t["key" .. i] = i end
while true do for k in pairs(t) do break end end
