-- expect: depth | time
-- Recursion, swallowed and repeated.
local function f() return 1 + f() end
while true do pcall(f) end
