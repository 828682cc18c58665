-- expect: depth | raised
-- Recursion through `__add`.
local m = {}
m.__add = function(a, b) return a + b end
return setmetatable({}, m) + 1
