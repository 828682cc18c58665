-- expect: raised
-- Looking at other functions.
return debug.info(1, "f")
