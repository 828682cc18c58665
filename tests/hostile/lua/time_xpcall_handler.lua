-- expect: time
-- The error handler loops as well.
xpcall(function() while true do end end, function() while true do end end)
