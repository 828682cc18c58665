-- explain(expression): its value, and in which order it is computed. The computing is the calculator's work.
local expression = args[1] or kwargs.expression
if type(expression) ~= "string" then
    return Outcome.error{
        error_type = "invalid_argument",
        error_message = "explain needs an expression such as 2 * (3 + 4)",
    }
end
local result = agent:delegate("calculator"):evaluate(expression)
if not result.ok then
    return result
end
local steps = {}
if string.find(expression, "(", 1, true) then
    table.insert(steps, "parentheses")
end
if string.find(expression, "^", 1, true) then
    table.insert(steps, "powers")
end
if string.find(expression, "[*/%%]") then
    table.insert(steps, "multiplication and division")
end
if string.find(expression, "[+-]") then
    table.insert(steps, "addition and subtraction")
end
local order = if #steps == 0 then "there is nothing to compute" else "first " .. table.concat(steps, ", then ")
return `{expression} is {result.value}: {order}.`
