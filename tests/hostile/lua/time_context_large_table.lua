-- expect: time | memory | host_calls
-- A large table in the context, written back before each call.
local t = {}
for i = 1, 20000 do t[i] = {i} end
context.t = t
local c = agent:delegate("x")
while true do t[1][1] += 1 pcall(c.add, 1) end
