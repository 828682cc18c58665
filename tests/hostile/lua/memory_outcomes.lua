-- expect: memory | time
-- Endless outcomes.
local t = {}
while true do t[#t + 1] = Outcome.error{error_message = "m" .. #t} end
