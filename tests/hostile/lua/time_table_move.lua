-- expect: time | raised | ok | memory
-- Moving an empty range of two thousand million.
return #table.move({}, 1, 2000000000, 2)
