-- expect: host_calls
-- Too many host calls.
local c = agent:delegate("x")
while true do c:add(1) end
