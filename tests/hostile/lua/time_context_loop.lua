-- expect: time
-- Reading the context for ever.
while true do local x = context.value end
