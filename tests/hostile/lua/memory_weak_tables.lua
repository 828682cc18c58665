-- expect: memory | time | ok
-- Weak tables with endless entries.
local t = setmetatable({}, {__mode = "k"})
for i = 1, 1e8 do t[{}] = {} end
