-- expect: memory | time
-- Endless nesting.
local t = {}
while true do t = {t, {}} end
