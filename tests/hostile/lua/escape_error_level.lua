-- expect: raised
-- An error that blames a caller far away.
error("x", 1000)
