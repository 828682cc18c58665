-- expect: time | memory
-- Comparing long texts in a loop.
local a, b = ("x"):rep(3000000) .. "a", ("x"):rep(3000000) .. "b"
local n = 0
while true do if a < b then n += 1 end end
