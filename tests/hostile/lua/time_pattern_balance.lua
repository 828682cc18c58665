-- expect: time | ok
-- Unbalanced brackets for %b.
return ("("):rep(50000):gsub("%b()", "")
