-- expect: refused
-- An outcome around deep nesting.
local t = {}
for i = 1, 100 do t = {t} end
return Outcome.ok(t)
