-- expect: refused
-- Shared tables that unfold to a thousand million.
local t = {"ha"}
for i = 1, 30 do t = {t, t} end
return t
