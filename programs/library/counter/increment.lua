-- increment(): counts one up. increment(n): counts n up. The count is the memory's `value`.
local by = args[1] or kwargs.by or 1
local value = context.value or 0
if type(by) ~= "number" or type(value) ~= "number" then
    return Outcome.error{
        error_type = "invalid_argument",
        error_message = "increment needs a number, or nothing for one",
    }
end
context.value = value + by
return context.value
