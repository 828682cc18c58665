-- expect: time
-- Asking for randomness for ever.
while true do random() end
