-- expect: time | raised | host_calls
-- Large keyword arguments for ever.
local t = {}
for i = 1, 50000 do t["k" .. i] = i end
while true do kw(t) end
