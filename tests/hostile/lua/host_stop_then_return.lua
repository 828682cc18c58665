-- expect: deadline
-- The host says stop, and the program returns.
pcall(function() agent:delegate("x"):stop() end)
return 1
