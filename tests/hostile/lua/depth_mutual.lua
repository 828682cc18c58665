-- expect: depth
-- Mutual recursion.
local a, b
a = function() return 1 + b() end
b = function() return 1 + a() end
return a()
