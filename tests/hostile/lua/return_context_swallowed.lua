-- expect: ok=1
-- A refused write that is swallowed changes nothing.
pcall(function() context.f = print end)
return context.f == nil and 1 or 2
