-- abs(x): x without its sign.
local number = args[1]
if type(number) ~= "number" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "abs needs a number" }
end
return math.abs(number)
