-- expect: depth | raised | ok
-- A chain of `__call` tables.
local f = function() return 1 end
for i = 1, 500 do f = setmetatable({}, {__call = f}) end
return f()
