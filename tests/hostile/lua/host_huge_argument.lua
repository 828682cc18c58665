-- expect: raised | memory
-- A huge argument.
agent:delegate("x"):echo(("x"):rep(2000000))
