-- expect: raised | refused
-- A function in the context.
context.f = print
