-- expect: raised
-- An error raised again and again.
local function f(n) local ok, e = pcall(n == 0 and error or f, n == 0 and "deep" or n - 1) error(e, 0) end
f(20)
