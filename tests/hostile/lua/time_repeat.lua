-- expect: time
-- An endless repeat.
repeat until false
