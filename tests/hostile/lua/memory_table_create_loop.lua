-- expect: memory | time
-- Many large lists.
local t = {}
for i = 1, 1e6 do t[i] = table.create(10000, i) end
