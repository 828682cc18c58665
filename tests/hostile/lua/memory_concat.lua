-- expect: memory | raised
-- Joining a list of long texts.
local s, t = ("x"):rep(1000000), {}
for i = 1, 1000 do t[i] = s end
return table.concat(t)
