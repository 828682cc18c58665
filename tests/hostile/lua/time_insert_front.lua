-- expect: time | memory
-- Inserting at the front of a growing list.
local t = {}
while true do table.insert(t, 1, 1) end
