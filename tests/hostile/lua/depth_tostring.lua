-- expect: depth | raised
-- Recursion through `__tostring`.
local t
t = setmetatable({}, {__tostring = function() return tostring(t) end})
return tostring(t)
