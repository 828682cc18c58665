-- expect: raised | time | depth
-- A table whose `__index` is itself through another.
local a, b = {}, {}
setmetatable(a, {__index = b})
setmetatable(b, {__index = a})
return a.x
