-- expect: raised
-- An error that claims to be out of memory.
error("not enough memory")
