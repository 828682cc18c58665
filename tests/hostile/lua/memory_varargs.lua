-- expect: memory | raised | time | depth
-- Arguments that double.
local function f(...) return f(1, ..., ...) end
return f(1)
