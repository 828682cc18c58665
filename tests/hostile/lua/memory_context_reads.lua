-- expect: ok | time
-- Reading very many keys that are not there.
for i = 1, 200000 do local x = context["k" .. i] end
