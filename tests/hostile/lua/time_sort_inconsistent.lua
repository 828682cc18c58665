-- expect: raised | ok
-- A comparator without any order.
local t = {}
for i = 1, 500 do t[i] = i % 7 end
table.sort(t, function() return true end)
