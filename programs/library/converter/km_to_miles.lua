-- km_to_miles(x): miles for kilometres.
local value = args[1] or kwargs.value
if type(value) ~= "number" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "km_to_miles needs a number" }
end
return value / 1.609344
