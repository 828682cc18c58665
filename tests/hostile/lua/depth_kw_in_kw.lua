-- expect: raised | ok
-- Keyword arguments inside keyword arguments.
local k = kw{}
for i = 1, 200 do k = kw{k = k} end
agent:delegate("x"):echo(k)
