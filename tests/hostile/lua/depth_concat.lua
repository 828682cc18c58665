-- expect: depth | raised
-- Recursion through `__concat`.
local t
t = setmetatable({}, {__concat = function(a, b) return a .. b end})
return t .. "x"
