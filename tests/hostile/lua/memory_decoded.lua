-- expect: memory | time
-- Decoded values pile up.
local s, t = json.encode(table.create(1000, {a = 1})), {}
while true do t[#t + 1] = json.decode(s) end
