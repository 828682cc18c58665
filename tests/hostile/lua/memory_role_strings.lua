-- expect: raised | host_calls | time
-- Roles that are megabytes long, swallowed.
local r = ("r"):rep(3000000)
for i = 1, 100 do pcall(agent.delegate, r .. i) end
agent:delegate(r)
