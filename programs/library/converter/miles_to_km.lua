-- miles_to_km(x): kilometres for miles.
local value = args[1] or kwargs.value
if type(value) ~= "number" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "miles_to_km needs a number" }
end
return value * 1.609344
