-- expect: raised
-- Clearing a library.
table.clear(string)
