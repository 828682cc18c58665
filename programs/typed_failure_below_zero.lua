local number = args[1]
if number < 0 then
    return Outcome.error{ error_type = "domain", error_message = `no square root of {number}` }
end
return math.sqrt(number)
