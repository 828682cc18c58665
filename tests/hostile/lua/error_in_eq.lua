-- expect: raised
-- An error inside `__eq`.
local m = {__eq = function() error("no") end}
return setmetatable({}, m) == setmetatable({}, m)
