-- lcm(a, b, ...): the least common multiple.
if #args == 0 then
    return Outcome.error{ error_type = "invalid_argument", error_message = "lcm needs whole numbers" }
end
local multiple = 1
for index = 1, #args do
    local number = args[index]
    if type(number) ~= "number" or number % 1 ~= 0 then
        return Outcome.error{ error_type = "invalid_argument", error_message = "lcm needs whole numbers" }
    end
    if number == 0 then
        return 0
    end
    number = math.abs(number)
    local divisor, rest = multiple, number
    while rest ~= 0 do
        divisor, rest = rest, divisor % rest
    end
    multiple = multiple / divisor * number
end
return multiple
