-- expect: raised
-- Tools cannot be listed by their metatable.
return getmetatable(tools).__index("fetch_url")
