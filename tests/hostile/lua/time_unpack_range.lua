-- expect: raised | memory | time
-- Unpacking more than the stack holds.
return select("#", table.unpack({}, 1, 1000000000))
