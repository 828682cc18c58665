-- expect: ok
-- Printing more than is kept.
for i = 1, 1000 do print(("x"):rep(10000)) end
