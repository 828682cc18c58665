-- expect: raised
-- An error whose `__index` loops is never asked.
error(setmetatable({}, {__index = function() while true do end end}))
