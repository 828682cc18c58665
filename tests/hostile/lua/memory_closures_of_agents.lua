-- expect: memory | time
-- Endless bound methods.
local t = {}
while true do t[#t + 1] = agent.nothing end
