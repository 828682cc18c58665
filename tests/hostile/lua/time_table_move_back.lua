-- expect: time | raised | ok | memory
-- Moving over the whole integer range.
table.move({}, -2000000000, 2000000000, 1)
