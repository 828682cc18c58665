-- expect: raised
-- Replacing a table function.
table.insert = nil
