-- memory_add(x): adds x to the memory (M+).
local number, memory = args[1], context.memory or 0
if type(number) ~= "number" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "memory_add needs a number" }
end
if type(memory) ~= "number" then
    return Outcome.error{
        error_type = "invalid_memory",
        error_message = "memory_add: the memory does not hold a number",
    }
end
context.memory = memory + number
return context.memory
