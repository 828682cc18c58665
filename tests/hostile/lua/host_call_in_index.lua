-- expect: internal
-- A panic inside `__index`.
local c = agent:delegate("x")
return setmetatable({}, {__index = function() return c:panic() end}).x
