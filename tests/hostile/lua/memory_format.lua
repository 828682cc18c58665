-- expect: memory | raised | ok
-- Formatting with a huge width.
return ("%999999999d"):format(1)
