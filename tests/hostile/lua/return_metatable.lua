-- expect: ok={"a":1}
-- Metamethods are never asked.
local function loop() while true do end end
return setmetatable({a = 1}, {__index = loop, __len = loop, __iter = loop, __tostring = loop, __call = loop})
