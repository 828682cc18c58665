-- expect: raised
-- An error that is a number.
error(0 / 0)
