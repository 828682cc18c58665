-- expect: depth | raised | ok | time
-- Recursion through xpcall and its handler.
local function f() return xpcall(f, f) end
return (f())
