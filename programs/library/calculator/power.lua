-- power(base, exponent): base to the power of exponent.
-- power(exponent): the memory to that power; the memory keeps the result.
local base, exponent = args[1], args[2]
if #args == 1 then
    base, exponent = context.memory or 0, args[1]
end
if type(base) ~= "number" or type(exponent) ~= "number" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "power needs two numbers" }
end

local result = base ^ exponent
if result ~= result or math.abs(result) == math.huge then
    return Outcome.error{
        error_type = "out_of_range",
        error_message = `{base} to the power of {exponent} is no number`,
    }
end
if #args == 1 then
    context.memory = result
end
return result
