-- expect: refused
-- One item at a very high index.
return {[2^52] = 1}
