-- expect: raised
-- Giving null a metatable.
setmetatable(null, {__index = function() return "poisoned" end})
