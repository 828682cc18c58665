-- expect: memory | time
-- Cloning for ever.
local t, keep = table.create(10000, 1), {}
while true do keep[#keep + 1] = table.clone(t) end
