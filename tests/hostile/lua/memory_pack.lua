-- expect: memory | raised | ok
-- Packing with a huge alignment.
return #string.pack(("i16"):rep(1000), table.unpack(table.create(1000, 1)))
