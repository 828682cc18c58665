-- expect: host_calls | time | memory
-- Host errors with long texts.
local name = ("x"):rep(1000000)
while true do pcall(tools[name], {}) end
