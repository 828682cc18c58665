-- expect: time | memory
-- Calling next on a table that changes each time.
local t, i = {}, 0
while true do i += 1 t["k" .. i] = i next(t, "k1") end
