-- expect: raised
-- Changing the mark of keyword arguments.
getmetatable(kw{}).__index = function() return "poisoned" end
