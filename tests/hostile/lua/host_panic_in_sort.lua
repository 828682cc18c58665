-- expect: internal
-- A panic inside a comparator.
local c = agent:delegate("x")
table.sort({2, 1}, function() c:panic() end)
