-- expect: raised | ok | memory | time
-- Arguments beyond the stack.
local t = {}
for i = 1, 100000 do t[i] = i end
return (select("#", table.unpack(t)))
