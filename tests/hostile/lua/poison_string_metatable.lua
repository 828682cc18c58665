-- expect: raised
-- Changing the metatable of all texts.
getmetatable("").__index = function() return "poisoned" end
