-- expect: memory | time | ok
-- Endless proxies of contexts.
local t = {}
for i = 1, 40 do t[i] = agent:delegate("x").runtime_context end
while true do t[#t + 1] = function() return t end end
