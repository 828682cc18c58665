-- filter("city", "Paris"), filter("age", "above", 30): the rows that fit; the loaded rows stay as they are.
if context.rows == nil then
    return Outcome.error{ error_type = "nothing_loaded", error_message = "load a CSV text first" }
end
local tables = agent:delegate("table")
if #args >= 3 then
    return tables:filter_by(context.rows, args[1], args[2], args[3])
end
return tables:filter_by(context.rows, args[1], args[2])
