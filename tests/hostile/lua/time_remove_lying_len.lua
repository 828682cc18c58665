-- expect: time | raised | ok
-- Removing with a lying length.
local t = setmetatable({}, {__len = function() return 1e15 end})
return table.remove(t, 1)
