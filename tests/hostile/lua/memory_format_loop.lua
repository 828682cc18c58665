-- expect: memory | time | raised
-- Formats that double.
local s = "x"
while true do s = ("%s%s"):format(s, s) end
