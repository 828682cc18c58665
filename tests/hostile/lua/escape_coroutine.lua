-- expect: raised
-- Coroutines do not exist.
return coroutine.wrap(function() while true do end end)()
