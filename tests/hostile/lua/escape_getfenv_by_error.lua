-- expect: raised
-- The environment of a function.
return getfenv(1)
