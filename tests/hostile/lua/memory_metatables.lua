-- expect: memory | time
-- Endless metatables.
local t = {}
while true do t = setmetatable({}, {__index = t}) end
