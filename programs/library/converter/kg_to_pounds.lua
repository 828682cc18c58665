-- kg_to_pounds(x): pounds for kilograms.
local value = args[1] or kwargs.value
if type(value) ~= "number" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "kg_to_pounds needs a number" }
end
return value / 0.45359237
