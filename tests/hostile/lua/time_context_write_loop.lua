-- expect: time
-- Writing the context for ever.
local i = 0
while true do i += 1 context.value = i end
