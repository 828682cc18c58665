-- expect: time | ok
-- Many plain searches with a needle below the guard.
local text, needle = ("a"):rep(4000000), ("a"):rep(31) .. "b"
for i = 1, 1000 do text:find(needle, 1, true) end
