-- expect: time | memory
-- Decoding the same text for ever.
local s = json.encode({1, 2, {a = ("x"):rep(1000)}})
while true do json.decode(s) end
