-- group_by(rows, column): a map from each value of the column, as text, to its rows.

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

local rows, name = args[1], args[2] or kwargs.column
if not are_rows(rows) or type(name) ~= "string" then
    return Outcome.error{
        error_type = "invalid_argument",
        error_message = "group_by needs rows and the name of a column",
    }
end
local groups = {}
for _, row in ipairs(rows) do
    local value = row[name]
    local key = if value == nil or value == null then "" else tostring(value)
    groups[key] = groups[key] or {}
    table.insert(groups[key], row)
end
return groups
