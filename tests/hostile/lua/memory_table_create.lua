-- expect: memory | raised
-- A list made huge at once.
return #table.create(1e9, 1)
