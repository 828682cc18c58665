-- percent(rate, whole): rate percent of whole, so percent(15, 80) is 12. Also percent{rate=, of=}.
local rate, whole = args[1] or kwargs.rate, args[2] or kwargs.of
if type(rate) ~= "number" or type(whole) ~= "number" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "percent needs a rate and a whole" }
end
return rate * whole / 100
