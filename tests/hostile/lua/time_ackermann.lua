-- expect: time | depth
-- The Ackermann function.
local function A(m, n) if m == 0 then return n + 1 end if n == 0 then return A(m - 1, 1) end return A(m - 1, A(m, n - 1)) end
return A(4, 2)
