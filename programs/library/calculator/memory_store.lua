-- memory_store(x): puts x into the memory.
local number = args[1]
if type(number) ~= "number" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "memory_store needs a number" }
end
context.memory = number
return number
