-- expect: time | ok
-- The quadratic trim.
return ((" "):rep(100000) .. "x"):match("^(.-)%s+$")
