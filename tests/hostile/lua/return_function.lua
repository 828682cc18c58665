-- expect: refused
-- A function.
return function() end
