-- expect: deadline
-- The host says stop.
while true do pcall(function() agent:delegate("x"):stop() end) end
