-- expect: ok
-- Replacing global functions, which are this call's own.
print, pairs, tostring, type, error, pcall = 1, 2, 3, 4, 5, 6
