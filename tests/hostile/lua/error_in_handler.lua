-- expect: raised
-- An error in the handler.
local ok, e = xpcall(error, function() error("second") end, "first")
error(e)
