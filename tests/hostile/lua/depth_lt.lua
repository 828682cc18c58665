-- expect: depth | raised
-- Recursion through `__lt`.
local m = {}
m.__lt = function(a, b) return a < b end
return setmetatable({}, m) < setmetatable({}, m)
