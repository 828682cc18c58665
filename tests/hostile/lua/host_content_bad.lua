-- expect: raised
-- A reference that is none.
content({})
