-- expect: raised
-- An error with a locked metatable.
error(setmetatable({}, {__metatable = "x", __tostring = function() error("y") end}))
