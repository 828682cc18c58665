-- expect: host_calls
-- Too many host calls, swallowed.
while true do pcall(agent.delegate, "x") end
