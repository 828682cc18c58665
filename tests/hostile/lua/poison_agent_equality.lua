-- expect: ok=false
-- Agents are not equal to what looks like them.
return agent == setmetatable({}, {__eq = function() return true end})
