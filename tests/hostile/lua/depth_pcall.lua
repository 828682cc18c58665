-- expect: depth | raised | ok
-- Recursion through pcall.
local function f() return pcall(f) end
return (f())
