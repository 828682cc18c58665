-- expect: refused
-- A table of functions.
return {add = function() end}
