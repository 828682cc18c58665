-- expect: time
-- Unpacking the arguments for ever.
while true do local a = table.unpack(args) end
