-- total("price"): the sum of a column. total("price", {by = "city"}): one sum for each city.
if context.rows == nil then
    return Outcome.error{ error_type = "nothing_loaded", error_message = "load a CSV text first" }
end
local column = args[1] or kwargs.column
local tables = agent:delegate("table")
if kwargs.by then
    return tables:aggregate(context.rows, kwargs.by, column, "sum")
end
local values = tables:column(context.rows, column)
if not values.ok then
    return values
end
return agent:delegate("list"):sum(values.value)
