-- expect: refused
-- A negative index.
return {[-1] = 1}
