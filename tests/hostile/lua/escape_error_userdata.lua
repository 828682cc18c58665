-- expect: ok
-- What an inner failure looks like holds nothing.
local ok, e = pcall(function() agent:delegate("x"):call("\255") end)
return type(e)
