-- expect: ok=1
-- Marking a function that has no upvalues.
local function f() return 1 end
mark = f
return mark()
