-- expect: time
-- gsub within gsub within gsub.
local function f(s) return (s:gsub(".", function(c) return (("x"):rep(50):gsub(".", function() return (("y"):rep(50):gsub(".-z", "")) end)) end)) end
while true do f(("a"):rep(100)) end
