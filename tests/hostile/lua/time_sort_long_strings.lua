-- expect: time | memory | ok
-- Sorting many references to two long strings compares megabytes each time.
local a, b = ("x"):rep(2000000) .. "a", ("x"):rep(2000000) .. "b"
local t = {}
for i = 1, 20000 do t[i] = i % 2 == 0 and a or b end
table.sort(t)
