-- expect: refused
-- A function slipped into a table that the context holds.
context.t = {1}
local t = context.t
t.x = print
return 1
