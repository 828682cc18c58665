-- expect: memory | time
-- Many large values in the context.
local s = ("x"):rep(900000)
for i = 1, 100000 do context["k" .. i] = s end
