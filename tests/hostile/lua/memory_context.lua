-- expect: refused | raised | memory | time
-- A huge value for the context.
context.big = ("x"):rep(5000000)
