-- subtract(a, b, ...): a minus all the others.
-- subtract(x): memory - x; the memory keeps the result, as on a pocket calculator.
if #args == 0 then
    return Outcome.error{ error_type = "invalid_argument", error_message = "subtract needs one number or more" }
end
for index = 1, #args do
    if type(args[index]) ~= "number" then
        return Outcome.error{
            error_type = "invalid_argument",
            error_message = `subtract: argument {index} is not a number`,
        }
    end
end

if #args == 1 then
    local memory = context.memory or 0
    if type(memory) ~= "number" then
        return Outcome.error{
            error_type = "invalid_memory",
            error_message = "subtract: the memory does not hold a number",
        }
    end
    context.memory = memory - args[1]
    return context.memory
end

local result = args[1]
for index = 2, #args do
    result -= args[index]
end
return result
