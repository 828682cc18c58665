-- expect: ok=1
-- A cached program has no memory in its upvalues.
local n = 0
local function count() n += 1 return n end
return count()
