-- expect: depth | raised
-- Recursion through `__iter`.
local t
t = setmetatable({}, {__iter = function() for x in t do end end})
for x in t do end
