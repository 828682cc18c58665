-- expect: time
-- A handler that swallows and a result that looks fine.
local ok = xpcall(function() while true do end end, function() return 1 end)
return "survived"
