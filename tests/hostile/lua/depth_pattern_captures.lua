-- expect: raised | compile
-- More captures than there may be.
return ("x"):match(("()"):rep(100))
