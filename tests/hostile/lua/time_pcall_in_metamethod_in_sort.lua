-- expect: time
-- Limits swallowed three levels deep.
local m = {__lt = function() return (pcall(function() while true do end end)) end}
local t = {}
for i = 1, 50 do t[i] = setmetatable({}, m) end
while true do pcall(table.sort, t) end
