-- expect: time
-- Interpolating tables for ever.
while true do local s = `{ {} }{print}{nil}` end
