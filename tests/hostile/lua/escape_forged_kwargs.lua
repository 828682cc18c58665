-- expect: ok
-- Forging keyword arguments gives keyword arguments.
local forged = setmetatable({a = 1}, getmetatable(kw{}))
agent:delegate("x"):echo(forged)
