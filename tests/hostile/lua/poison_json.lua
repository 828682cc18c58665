-- expect: raised
-- Replacing the encoder.
json.encode = function() return "poisoned" end
