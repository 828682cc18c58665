-- expect: time
-- Arithmetic on huge numbers.
local x = 1
while x == x do x = (x * 1e300) % 7 ^ 3 end
while true do end
