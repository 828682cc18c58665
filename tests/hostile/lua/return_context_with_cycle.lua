-- expect: refused | raised
-- A cycle in the context.
context.t = {}
context.t.t = context.t
return 1
