-- expect: time
-- Formatting many strange values.
local v = table.create(200, true)
local f = ("%s"):rep(200)
while true do f:format(table.unpack(v)) end
