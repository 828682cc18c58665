-- expect: raised
-- Changing the mark of lists.
getmetatable(array{}).__index = function() return "poisoned" end
