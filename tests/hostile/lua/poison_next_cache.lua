-- expect: ok
-- Leaving an iteration unfinished.
local t = {a = 1, b = 2}
next(t, next(t))
