-- expect: memory
-- Interpolation that doubles.
local s = "x"
while true do s = `{s}{s}` end
