-- expect: memory | time
-- An endless list.
local t = {}
while true do t[#t + 1] = t end
