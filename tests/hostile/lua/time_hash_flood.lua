-- expect: time | memory | ok
-- Keys that may share a hash slot.
local t = {}
for i = 1, 1e7 do t[i * 2^40] = true end
