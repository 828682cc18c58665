-- expect: time
-- A `__len` that loops.
return #setmetatable({}, {__len = function() while true do end end})
