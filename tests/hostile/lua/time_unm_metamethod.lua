-- expect: time
-- A `__unm` that loops.
return -setmetatable({}, {__unm = function() while true do end end})
