-- expect: host_calls
-- Another agent's context, key by key.
local c = agent:delegate("x").runtime_context
local i = 0
while true do i += 1 c["k" .. i] = i end
