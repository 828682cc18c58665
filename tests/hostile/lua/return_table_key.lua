-- expect: refused
-- A table as a key.
return {[{}] = 1}
