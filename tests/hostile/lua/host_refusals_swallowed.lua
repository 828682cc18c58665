-- expect: host_calls
-- Refusals count.
while true do pcall(agent.delegate, "forbidden") end
