-- expect: ok=false
-- An inner program that never ends.
return agent:delegate("x"):run("while true do end").ok
