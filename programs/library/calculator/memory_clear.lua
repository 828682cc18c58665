-- memory_clear(): sets the memory to 0 (MC).
context.memory = 0
return 0
