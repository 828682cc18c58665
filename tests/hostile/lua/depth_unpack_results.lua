-- expect: raised | ok | memory | refused
-- As many results as the stack takes.
return table.unpack(table.create(7900, 1))
