-- expect: time
-- A `__call` that loops.
setmetatable({}, {__call = function() while true do end end})()
