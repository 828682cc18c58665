-- expect: compile
-- The name of the loop wrapper.
__in_key_order = function(...) return ... end
