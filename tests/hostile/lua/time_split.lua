-- expect: raised | time | memory | ok
-- Splitting by a long separator.
local s = ("a"):rep(2000000)
return #s:split(("a"):rep(1000000) .. "b")
