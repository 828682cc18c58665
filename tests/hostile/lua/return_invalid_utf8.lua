-- expect: refused
-- Bytes that are not text.
return "\255"
