-- expect: time
-- gmatch over empty matches with a slow pattern.
for w in ("a"):rep(100000):gmatch(".-b") do end
