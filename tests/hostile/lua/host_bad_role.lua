-- expect: raised
-- A role that is no text.
agent:delegate({})
