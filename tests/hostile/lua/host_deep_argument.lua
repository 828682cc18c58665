-- expect: raised
-- A deep argument.
local t = {}
for i = 1, 1000 do t = {t} end
agent:delegate("x"):echo(t)
