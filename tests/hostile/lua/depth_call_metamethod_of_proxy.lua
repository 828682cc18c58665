-- expect: raised
-- Calling what cannot be called.
return context()
