-- expect: depth | raised | ok | time
-- An error handler that raises.
local function h() error("again") end
return select("#", xpcall(function() error("x") end, h))
