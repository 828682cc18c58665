-- expect: time
-- An endless loop without a body.
while true do end
