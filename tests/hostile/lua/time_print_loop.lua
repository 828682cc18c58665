-- expect: time
-- Printing for ever.
while true do print("x") end
