-- expect: memory | time
-- Splitting a text into a million pieces, often.
local t = {}
while true do t[#t + 1] = ("a,"):rep(100000):split(",") end
