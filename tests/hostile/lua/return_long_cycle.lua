-- expect: refused
-- A cycle over several tables.
local a, b, c = {}, {}, {}
a.b, b.c, c.a = b, c, a
return a
