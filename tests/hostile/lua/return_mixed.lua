-- expect: refused
-- A mixed table.
return {1, a = 2}
