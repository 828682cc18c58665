-- expect: ok=[]
-- None of the dangerous globals exists.
local found = array{}
if load ~= nil then table.insert(found, "load") end
if loadstring ~= nil then table.insert(found, "loadstring") end
if loadfile ~= nil then table.insert(found, "loadfile") end
if dofile ~= nil then table.insert(found, "dofile") end
if require ~= nil then table.insert(found, "require") end
if getfenv ~= nil then table.insert(found, "getfenv") end
if setfenv ~= nil then table.insert(found, "setfenv") end
if newproxy ~= nil then table.insert(found, "newproxy") end
if collectgarbage ~= nil then table.insert(found, "collectgarbage") end
if debug ~= nil then table.insert(found, "debug") end
if os ~= nil then table.insert(found, "os") end
if io ~= nil then table.insert(found, "io") end
if package ~= nil then table.insert(found, "package") end
if coroutine ~= nil then table.insert(found, "coroutine") end
if buffer ~= nil then table.insert(found, "buffer") end
if vector ~= nil then table.insert(found, "vector") end
if _G ~= nil then table.insert(found, "_G") end
if gcinfo ~= nil then table.insert(found, "gcinfo") end
if module ~= nil then table.insert(found, "module") end
if shared ~= nil then table.insert(found, "shared") end
if script ~= nil then table.insert(found, "script") end
if game ~= nil then table.insert(found, "game") end
if dlopen ~= nil then table.insert(found, "dlopen") end
if ffi ~= nil then table.insert(found, "ffi") end
return found
