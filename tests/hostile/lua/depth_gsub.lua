-- expect: depth | raised
-- Recursion through gsub.
local function f() return (("x"):gsub("x", f)) end
return f()
