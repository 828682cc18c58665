-- expect: memory
-- One huge repetition.
return ("x"):rep(1e9)
