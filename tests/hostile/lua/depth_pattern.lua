-- expect: raised | time | depth | ok
-- A pattern that recurses in the matcher.
return (("x"):rep(300000)):match(("x?"):rep(5000))
