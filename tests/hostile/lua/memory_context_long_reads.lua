-- expect: ok | time | memory
-- Reading keys that are megabytes long.
for i = 1, 1000 do local x = context[("k"):rep(1000000) .. i] end
