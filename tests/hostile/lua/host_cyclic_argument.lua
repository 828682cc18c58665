-- expect: raised
-- A cyclic argument.
local t = {}
t.t = t
agent:delegate("x"):echo(t)
