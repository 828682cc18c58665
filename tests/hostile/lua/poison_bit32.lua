-- expect: raised
-- Replacing bit32.
bit32.band = nil
