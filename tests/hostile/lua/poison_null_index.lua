-- expect: raised
-- Writing to null.
null.x = 1
