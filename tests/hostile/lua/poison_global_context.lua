-- expect: raised
-- Replacing the context by a table.
context = {value = 666}
context.value = 667
