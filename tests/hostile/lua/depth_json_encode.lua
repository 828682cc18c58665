-- expect: raised
-- Encoding deep nesting.
local t = {}
for i = 1, 5000 do t = {t} end
return json.encode(t)
