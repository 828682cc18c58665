-- expect: refused
-- An agent inside.
return {agent}
