-- modulo(a, b): what is left of a after taking away whole b's; it has the sign of b.
local a, b = args[1], args[2]
if type(a) ~= "number" or type(b) ~= "number" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "modulo needs two numbers" }
end
if b == 0 then
    return Outcome.error{ error_type = "division_by_zero", error_message = "cannot divide by zero" }
end
return a % b
