-- expect: time
-- A numeric loop that never gets there.
for i = 1, math.huge do end
