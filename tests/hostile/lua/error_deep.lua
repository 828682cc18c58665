-- expect: raised
-- An error that is deep.
local e = {}
for i = 1, 10000 do e = {e} end
error(e)
