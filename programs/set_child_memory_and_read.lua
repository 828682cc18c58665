local child = agent:delegate("notebook")
child.memory = 5
return child.memory
