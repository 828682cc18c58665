-- expect: refused
-- A key that is not text.
return {["\255"] = 1}
