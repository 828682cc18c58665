-- expect: memory | raised | time
-- Characters from a long list.
local t = table.create(7000, 0x10FFFF)
local s = ""
while true do s = s .. utf8.char(table.unpack(t)) end
