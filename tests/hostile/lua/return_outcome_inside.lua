-- expect: refused
-- An outcome inside.
return {Outcome.ok(1)}
