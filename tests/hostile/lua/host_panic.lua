-- expect: internal
-- A host method that panics.
agent:delegate("x"):panic()
