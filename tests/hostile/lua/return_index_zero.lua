-- expect: refused
-- A list from zero.
return {[0] = 1, [1] = 2}
