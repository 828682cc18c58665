-- expect: raised
-- Adding to the metatable of all texts.
getmetatable("").__add = function() return 0 end
