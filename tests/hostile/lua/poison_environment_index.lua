-- expect: raised | ok
-- Looking for the environment's metatable.
local m = getmetatable(context)
return m.__index
