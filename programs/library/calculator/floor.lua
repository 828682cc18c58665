-- floor(x): the largest whole number that is not above x.
local number = args[1]
if type(number) ~= "number" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "floor needs a number" }
end
return math.floor(number)
