-- expect: depth | raised
-- Recursion through `__call`.
local t
t = setmetatable({}, {__call = function(self) return 1 + self() end})
return t()
