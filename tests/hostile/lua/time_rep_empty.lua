-- expect: time | ok | raised | memory
-- Repeating nothing very often.
return #(""):rep(1e15)
