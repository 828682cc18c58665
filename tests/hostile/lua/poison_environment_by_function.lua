-- expect: ok=1
-- Functions of an earlier call see their own globals only.
function helper() return marker end
if marker ~= nil then return 2 end
marker = 1
return helper()
