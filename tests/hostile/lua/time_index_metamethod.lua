-- expect: time
-- An `__index` that loops.
return setmetatable({}, {__index = function() while true do end end}).x
