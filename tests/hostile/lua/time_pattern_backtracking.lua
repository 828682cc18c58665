-- expect: time
-- A pattern that backtracks for ever.
return ("a"):rep(200000):find(".-.-.-.-b")
