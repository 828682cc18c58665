-- expect: raised | time | ok | memory
-- A plain search that is quadratic in C.
local needle = ("a"):rep(2000000) .. "b"
return ("a"):rep(4000000):find(needle, 1, true)
