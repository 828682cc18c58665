-- sqrt(x): the square root. sqrt(): of the memory, which keeps the result.
local number = args[1]
if #args == 0 then
    number = context.memory or 0
end
if type(number) ~= "number" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "sqrt needs a number" }
end
if number < 0 then
    return Outcome.error{ error_type = "out_of_range", error_message = `{number} has no real square root` }
end
local root = math.sqrt(number)
if #args == 0 then
    context.memory = root
end
return root
