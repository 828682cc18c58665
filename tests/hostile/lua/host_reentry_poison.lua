-- expect: ok=1
-- An inner program cannot change the outer one's world.
agent:delegate("x"):run("args[1] = 9 x = 2 print = nil", 5)
return x == nil and args[2] == nil and print ~= nil and 1 or 2
