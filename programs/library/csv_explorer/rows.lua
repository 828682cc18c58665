-- rows(): the first five rows that were loaded. rows(n): the first n.
if context.rows == nil then
    return Outcome.error{ error_type = "nothing_loaded", error_message = "load a CSV text first" }
end
return agent:delegate("table"):head(context.rows, args[1] or 5)
