-- expect: ok
-- Changing them raw.
rawset(args, 1, "poisoned")
rawset(kwargs, "x", "poisoned")
