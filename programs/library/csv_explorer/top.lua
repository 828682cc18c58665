-- top("price", 3): the three rows with the largest price.
if context.rows == nil then
    return Outcome.error{ error_type = "nothing_loaded", error_message = "load a CSV text first" }
end
local column, count = args[1] or kwargs.column, args[2] or kwargs.count or 5
local tables = agent:delegate("table")
local sorted = tables:sort_by(context.rows, column, kw{ descending = true })
if not sorted.ok then
    return sorted
end
return tables:head(sorted.value, count)
