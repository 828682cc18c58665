-- expect: refused
-- Infinity inside.
return {x = 1 / 0}
