-- expect: refused | ok
-- A list that is mostly empty.
local t = table.create(10)
t[10] = 1
return t
