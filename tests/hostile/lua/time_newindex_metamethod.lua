-- expect: time
-- A `__newindex` that loops.
local t = setmetatable({}, {__newindex = function() while true do end end})
t.x = 1
