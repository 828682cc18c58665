-- expect: raised
-- An error whose `__tostring` loops is never asked.
error(setmetatable({}, {__tostring = function() while true do end end}))
