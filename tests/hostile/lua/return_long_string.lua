-- expect: refused
-- A very long text.
return ("x"):rep(2000000)
