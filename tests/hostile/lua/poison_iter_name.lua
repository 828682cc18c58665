-- expect: compile
-- Redefining the loop wrapper.
local __in_key_order = 1
