-- expect: raised
-- assert with nothing.
assert()
