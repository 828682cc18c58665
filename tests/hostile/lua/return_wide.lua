-- expect: refused | memory | time
-- A very long list.
local t = {}
for i = 1, 200000 do t[i] = i end
return t
