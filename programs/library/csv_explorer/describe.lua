-- describe(): what every column holds, with statistics for columns of numbers.
if context.rows == nil then
    return Outcome.error{ error_type = "nothing_loaded", error_message = "load a CSV text first" }
end
return agent:delegate("table"):describe(context.rows)
