-- expect: raised | memory | time
-- Encoding a value that is too large.
local t = {}
for i = 1, 1000000 do t[i] = i end
return #json.encode(t)
