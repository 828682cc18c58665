-- expect: raised
-- Giving the agent another metatable.
setmetatable(agent, {__index = {role = "poisoned"}})
