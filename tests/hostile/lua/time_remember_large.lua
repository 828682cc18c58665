-- expect: time | host_calls | memory | raised
-- Remembering much for ever.
local t = {}
for i = 1, 5000 do t["k" .. i] = ("x"):rep(100) end
while true do agent:remember(t) end
