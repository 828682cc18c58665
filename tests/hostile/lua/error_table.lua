-- expect: raised
-- An error that is a table.
error({code = 7})
