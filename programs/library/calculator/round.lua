-- round(x): the nearest whole number; halves go away from zero.
-- round(x, digits): the same with that many digits after the point.
local number, digits = args[1], args[2] or kwargs.digits or 0
if type(number) ~= "number" or type(digits) ~= "number" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "round needs a number" }
end
if digits < 0 or digits > 15 or digits % 1 ~= 0 then
    return Outcome.error{
        error_type = "invalid_argument",
        error_message = "round: digits must be a whole number from 0 to 15",
    }
end
local scale = 1
for _ = 1, digits do
    scale *= 10
end
return math.round(number * scale) / scale
