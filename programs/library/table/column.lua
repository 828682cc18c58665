-- column(rows, name): the values of one column, in row order; null where a row has none.
local rows, name = args[1], args[2] or kwargs.name
if type(rows) ~= "table" or type(name) ~= "string" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "column needs rows and the name of a column" }
end
local values, found = array{}, false
for index, row in ipairs(rows) do
    found = found or row[name] ~= nil
    values[index] = if row[name] == nil then null else row[name]
end
if not found then
    return Outcome.error{ error_type = "unknown_column", error_message = `no row has a column {name}` }
end
return values
