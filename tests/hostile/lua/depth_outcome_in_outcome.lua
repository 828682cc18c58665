-- expect: refused
-- Outcomes inside outcomes.
local o = Outcome.ok(1)
for i = 1, 100 do o = Outcome.ok(o) end
return o
