-- expect: ok | compile
-- Attributes change nothing.
@native
local function f() return 1 end
return f()
