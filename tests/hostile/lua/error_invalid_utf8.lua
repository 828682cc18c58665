-- expect: raised
-- An error that is not text.
error("\255\254\0")
