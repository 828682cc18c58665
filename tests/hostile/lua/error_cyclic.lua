-- expect: raised
-- An error that contains itself.
local e = {}
e.e = e
error(e)
