-- expect: raised
-- An error that is null.
error(null)
