-- expect: ok="locked"
-- Metatables of our objects are hidden.
return getmetatable(tools)
