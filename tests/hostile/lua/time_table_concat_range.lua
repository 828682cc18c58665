-- expect: raised | time | memory
-- Joining a range that is not there.
return table.concat({}, ",", 1, 2000000000)
