-- expect: time | raised | memory
-- Adding keys while iterating by next.
local t, k, i = {a = 1}, nil, 0
while true do i += 1 k = next(t, k) t["k" .. i] = 1 end
