-- expect: time | ok | memory
-- Counting characters of a long text in a loop.
local s = ("é"):rep(1000000)
for i = 1, 10000 do utf8.len(s) end
