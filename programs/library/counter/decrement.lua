-- decrement(): counts one down. decrement(n): counts n down.
local by = args[1] or kwargs.by or 1
local value = context.value or 0
if type(by) ~= "number" or type(value) ~= "number" then
    return Outcome.error{
        error_type = "invalid_argument",
        error_message = "decrement needs a number, or nothing for one",
    }
end
context.value = value - by
return context.value
