-- expect: raised
-- A tool with a list.
tools.fetch_url{1, 2}
