-- expect: time
-- The timeout is swallowed inside the loop.
while true do pcall(function() while true do end end) end
