-- columns(): the names of the columns that were loaded.
if context.rows == nil then
    return Outcome.error{ error_type = "nothing_loaded", error_message = "load a CSV text first" }
end
return agent:delegate("table"):columns(context.rows)
