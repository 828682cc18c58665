-- expect: internal
-- A panic inside `__tostring`.
local c = agent:delegate("x")
print(setmetatable({}, {__tostring = function() c:panic() return "" end}))
