-- expect: time | memory
-- Endless new text keys.
local t = {}
for i = 1, 1e9 do t["key" .. i] = i end
