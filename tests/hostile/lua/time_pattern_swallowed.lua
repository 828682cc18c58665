-- expect: time
-- The pattern timeout is swallowed in a loop.
while true do pcall(string.find, ("a"):rep(100000), ".-.-.-b") end
