-- reset(): back to zero. reset(n): to n.
local value = args[1] or kwargs.to or 0
if type(value) ~= "number" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "reset needs a number, or nothing for zero" }
end
context.value = value
return value
