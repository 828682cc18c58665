-- expect: refused
-- A table that contains itself.
local t = {}
t.t = t
return t
