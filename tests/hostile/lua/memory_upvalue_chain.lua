-- expect: memory | time | ok
-- A chain of closures.
local f = function() return 1 end
for i = 1, 1e7 do local g = f f = function() return g end end
