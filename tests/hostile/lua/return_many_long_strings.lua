-- expect: refused
-- The same long text many times.
local s, t = ("x"):rep(100000), {}
for i = 1, 100 do t[i] = s end
return t
