-- expect: raised
-- An error that is nil.
error(nil)
