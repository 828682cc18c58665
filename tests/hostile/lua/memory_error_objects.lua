-- expect: time | memory
-- Error objects with long texts, swallowed.
local s = ("x"):rep(1000000)
while true do pcall(error, s .. "y") end
