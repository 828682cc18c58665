-- expect: raised | time | ok
-- A numeric loop whose step is zero.
for i = 1, 10, 0 do end
