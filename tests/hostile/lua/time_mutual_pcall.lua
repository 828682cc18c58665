-- expect: time | depth
-- Two functions that call each other under pcall.
local a, b
a = function() pcall(b) return a() end
b = function() pcall(a) return b() end
while true do pcall(a) end
