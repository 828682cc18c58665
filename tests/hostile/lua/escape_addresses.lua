-- expect: ok=["table","function","userdata|null"]
-- No addresses in texts.
local t = tostring(null) == "null" and "userdata|null" or "?"
return {tostring({}), tostring(print), t}
