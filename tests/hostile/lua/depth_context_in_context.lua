-- expect: ok | refused | raised | memory | time
-- The context inside itself, again and again.
context.a = 1
for i = 1, 12 do context["c" .. i] = context end
return 1
