-- expect: internal
-- A tool that panics.
tools.explode{}
