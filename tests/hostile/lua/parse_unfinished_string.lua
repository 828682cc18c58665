-- expect: compile
-- A string without an end.
return "abc
