-- expect: time | memory | ok
-- Reading a number with a million digits, often.
local s = ("1"):rep(1000000)
while true do tonumber(s) end
