-- expect: raised
-- Replacing the outcome's constructor.
Outcome.ok = function() return "poisoned" end
