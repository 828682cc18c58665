-- column(rows, name): the values of one column, in row order; null where a row has none.

-- A list of maps. A map is a table too.
local function are_rows(value)
    if type(value) ~= "table" or (#value == 0 and next(value) ~= nil) then
        return false
    end
    for _, row in ipairs(value) do
        if type(row) ~= "table" or #row > 0 then
            return false
        end
    end
    return true
end

local rows, name = args[1], args[2] or kwargs.name
if not are_rows(rows) or type(name) ~= "string" then
    return Outcome.error{
        error_type = "invalid_argument",
        error_message = "column needs rows and the name of a column",
    }
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
