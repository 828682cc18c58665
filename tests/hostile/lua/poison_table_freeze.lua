-- expect: raised | ok
-- Freezing what is shared.
table.freeze(string)
table.freeze(args)
