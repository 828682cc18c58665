-- expect: time | raised
-- Comparing outcomes with large values for ever.
local t = {}
for i = 1, 20000 do t[i] = i end
local o, p = Outcome.ok(t), Outcome.ok(t)
while o == p do end
