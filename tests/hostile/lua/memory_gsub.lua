-- expect: memory | time
-- A replacement that multiplies.
local s = ("x"):rep(10000)
while true do s = s:gsub("x", "xx") end
