-- memory_subtract(x): takes x from the memory (M-).
local number, memory = args[1], context.memory or 0
if type(number) ~= "number" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "memory_subtract needs a number" }
end
if type(memory) ~= "number" then
    return Outcome.error{
        error_type = "invalid_memory",
        error_message = "memory_subtract: the memory does not hold a number",
    }
end
context.memory = memory - number
return context.memory
