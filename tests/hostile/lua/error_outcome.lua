-- expect: raised
-- An error that is an outcome.
error(agent:delegate("x"):fail())
