-- expect: raised
-- Changing the metatable of agents.
getmetatable(agent).__index = function() return "poisoned" end
