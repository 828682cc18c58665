-- expect: raised
-- Replacing utf8.
utf8.char = nil
