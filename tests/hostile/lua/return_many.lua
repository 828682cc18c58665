-- expect: refused
-- Several values.
return 1, 2, 3
