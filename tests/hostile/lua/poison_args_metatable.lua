-- expect: raised
-- Changing the metatable of the arguments.
getmetatable(args).__index = function() return "poisoned" end
