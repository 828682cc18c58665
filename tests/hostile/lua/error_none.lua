-- expect: raised
-- An error without a value.
error()
