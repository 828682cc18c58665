-- expect: time
-- A replacement table whose `__index` loops.
return (("x"):gsub("x", setmetatable({}, {__index = function() while true do end end})))
