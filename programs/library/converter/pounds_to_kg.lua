-- pounds_to_kg(x): kilograms for pounds.
local value = args[1] or kwargs.value
if type(value) ~= "number" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "pounds_to_kg needs a number" }
end
return value * 0.45359237
