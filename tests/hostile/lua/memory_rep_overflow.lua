-- expect: memory | raised | ok
-- A repetition whose length overflows.
return ("xx"):rep(2^62)
