-- expect: time
-- Encoding the same table for ever.
local t = {}
for i = 1, 1000 do t[i] = {a = i} end
while true do json.encode(t) end
