-- expect: raised
-- Replacing a tool.
tools.fetch_url = function() return "poisoned" end
