-- expect: raised
-- assert with a table.
assert(false, {1, 2})
