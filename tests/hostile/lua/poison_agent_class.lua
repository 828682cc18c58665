-- expect: raised
-- Replacing the constructor.
Agent.for_role = function() return "poisoned" end
