-- show(): the loaded rows as a table to read. show({"name", "age"}): these columns, so ordered.
if context.rows == nil then
    return Outcome.error{ error_type = "nothing_loaded", error_message = "load a CSV text first" }
end
local columns = args[1] or kwargs.columns
if columns == nil then
    return agent:delegate("table"):to_text(context.rows)
end
return agent:delegate("table"):to_text(context.rows, columns)
