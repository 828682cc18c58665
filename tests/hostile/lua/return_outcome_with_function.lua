-- expect: refused
-- An outcome with a value that has no form.
return Outcome.ok(print)
