-- expect: raised
-- An error that is a function.
error(function() while true do end end)
