-- expect: ok=[1]
-- A cached program has no memory in its constant tables.
local t = {}
table.insert(t, #t + 1)
return t
