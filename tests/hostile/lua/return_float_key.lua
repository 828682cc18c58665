-- expect: refused
-- A fractional key.
return {[1.5] = 1}
