-- expect: raised
-- A tool with a cycle.
local t = {}
t.t = t
tools.fetch_url(t)
