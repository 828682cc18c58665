-- expect: time
-- Nested greedy repetition.
return ("a"):rep(3000):find(("a*"):rep(20) .. "b")
