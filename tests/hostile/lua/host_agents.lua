-- expect: host_calls
-- Too many agents.
local t = {}
while true do t[#t + 1] = agent:delegate("x") end
