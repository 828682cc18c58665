-- expect: ok | compile | raised
-- A type function is no code to run.
type function f(t) while true do end return t end
local x: f<number> = 1
return x
