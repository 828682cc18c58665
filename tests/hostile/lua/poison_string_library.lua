-- expect: raised
-- Replacing a string function.
string.upper = function() return "poisoned" end
