-- expect: raised | ok
-- Clearing the context by the library.
table.clear(context)
