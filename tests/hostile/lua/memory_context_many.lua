-- expect: time | memory | raised | ok
-- Very many keys in the context.
for i = 1, 1e6 do context["k" .. i] = i end
