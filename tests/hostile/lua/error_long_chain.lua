-- expect: raised
-- Errors that grow at each level.
local function f(n) if n == 0 then error("x") end local ok, e = pcall(f, n - 1) error(e .. e) end
f(14)
