-- expect: depth | raised
-- Recursion inside an iteration.
local function f() for w in ("a b"):gmatch("%a") do f() end end
f()
