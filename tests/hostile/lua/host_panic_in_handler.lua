-- expect: internal
-- A panic inside an error handler.
local c = agent:delegate("x")
xpcall(error, function() c:panic() end)
