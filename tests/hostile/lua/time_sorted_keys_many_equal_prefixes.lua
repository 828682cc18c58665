-- expect: time | memory
-- Sorting keys with a long common prefix.
local p, t = ("x"):rep(20000), {}
for i = 1, 500 do t[p .. i] = i end
while true do for k in t do break end end
