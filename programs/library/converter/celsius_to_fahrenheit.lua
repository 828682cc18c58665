-- celsius_to_fahrenheit(x): degrees Fahrenheit for degrees Celsius.
local value = args[1] or kwargs.value
if type(value) ~= "number" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "celsius_to_fahrenheit needs a number" }
end
return value * 9 / 5 + 32
