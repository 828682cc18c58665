-- expect: raised
-- Replacing a math function.
math.floor = function() return "poisoned" end
