-- expect: time | ok | memory
-- Copying a long text in a loop.
local s = ("é"):rep(1000000)
while true do s:upper():lower():reverse() end
