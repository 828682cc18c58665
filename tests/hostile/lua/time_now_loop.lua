-- expect: time
-- Asking for the time for ever.
while true do now() end
