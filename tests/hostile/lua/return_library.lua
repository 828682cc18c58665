-- expect: refused
-- A library.
return string
