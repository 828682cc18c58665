-- expect: ok | time
-- Reading very many named arguments that are not there.
for i = 1, 200000 do local x = kwargs["k" .. i] end
