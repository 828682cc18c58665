-- expect: depth | raised
-- Recursion through `__len`.
local m = {}
m.__len = function(t) return #t end
return #setmetatable({}, m)
