-- expect: memory | time
-- The memory error is swallowed, and all is tried again.
local keep = {}
while true do pcall(function() for i = 1, 1e9 do keep[#keep + 1] = ("x"):rep(1000) .. i end end) end
