-- expect: time
-- A `__tostring` that loops, inside string.format.
return ("%s"):format(setmetatable({}, {__tostring = function() while true do end end}))
