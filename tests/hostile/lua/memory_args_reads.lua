-- expect: ok | time
-- Reading very many positions that are not there.
for i = 1, 300000 do local x = args[i] end
