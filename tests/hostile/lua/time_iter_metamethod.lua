-- expect: time
-- An `__iter` that loops.
for x in setmetatable({}, {__iter = function() while true do end end}) do end
