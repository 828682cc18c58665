-- expect: raised
-- Changing the metatable of outcomes.
getmetatable(Outcome.ok(1)).__index = nil
