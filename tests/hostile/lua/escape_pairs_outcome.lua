-- expect: ok=["ok","retriable","status","value"]
-- Only public fields in outcomes made here.
local t = {}
for k, v in pairs(Outcome.ok(1)) do if v ~= "" then t[#t + 1] = k end end
return t
