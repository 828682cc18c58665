-- expect: raised
-- Addresses by %p.
return ("%p"):format({})
