-- expect: ok | raised | depth
-- A chain of `__index` that ends at a proxy.
local t = context
for i = 1, 150 do t = setmetatable({}, {__index = t}) end
return t.value
