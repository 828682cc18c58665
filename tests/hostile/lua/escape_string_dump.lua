-- expect: raised
-- Dumping bytecode.
return string.dump(function() end)
