-- expect: ok
-- Waiting costs no CPU time.
agent:delegate("x"):wait(250)
