-- expect: raised
-- A setter with a function.
agent:delegate("x").value = print
