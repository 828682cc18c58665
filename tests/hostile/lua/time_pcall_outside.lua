-- expect: time
-- The timeout is swallowed, and the loop begins again.
local function again() local ok = pcall(function() while true do end end) return again() end
while true do pcall(again) end
