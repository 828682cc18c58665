-- expect: time
-- Showing an outcome with a large value for ever.
local t = {}
for i = 1, 20000 do t[i] = i end
local o = Outcome.ok(t)
while true do tostring(o) end
