-- expect: ok=[1,2]
-- A list with deleted items at the end.
local t = {1, 2, 3, 4}
t[4], t[3] = nil, nil
return t
