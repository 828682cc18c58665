-- expect: internal
-- A panic inside a replacement.
local c = agent:delegate("x")
return (("x"):gsub("x", function() c:panic() end))
