-- expect: time
-- A `__concat` that loops.
return setmetatable({}, {__concat = function() while true do end end}) .. "x"
