-- expect: raised | memory
-- An error with a long text.
error(("x"):rep(3000000))
