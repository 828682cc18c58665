-- expect: raised
-- Cloning an outcome to change the clone.
local o = table.clone(Outcome.ok(1))
o.ok = false
return o
