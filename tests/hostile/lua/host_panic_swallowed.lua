-- expect: internal
-- The panic is swallowed.
while true do pcall(function() agent:delegate("x"):panic() end) end
