-- expect: refused
-- Not a number.
return 0 / 0
