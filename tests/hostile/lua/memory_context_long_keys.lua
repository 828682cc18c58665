-- expect: raised
-- Keys of the context that are megabytes long.
for i = 1, 100 do context[("k"):rep(1000000) .. i] = 1 end
