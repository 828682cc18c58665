-- expect: time
-- A `__tostring` that loops, under print.
print(setmetatable({}, {__tostring = function() while true do end end}))
