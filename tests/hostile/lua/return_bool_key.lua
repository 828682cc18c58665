-- expect: refused
-- A truth value as a key.
return {[true] = 1}
