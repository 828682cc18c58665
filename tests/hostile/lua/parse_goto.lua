-- expect: compile
-- A `goto`, which Luau does not have.
goto done
::done::
