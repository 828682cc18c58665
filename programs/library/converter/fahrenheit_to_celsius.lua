-- fahrenheit_to_celsius(x): degrees Celsius for degrees Fahrenheit.
local value = args[1] or kwargs.value
if type(value) ~= "number" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "fahrenheit_to_celsius needs a number" }
end
return (value - 32) * 5 / 9
