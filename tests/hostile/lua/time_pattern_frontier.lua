-- expect: time | ok
-- A frontier over a long text, swallowed.
pcall(function() return ("ab"):rep(1000000):gsub("%f[%w].-%f[%W]z", "") end)
return 1
