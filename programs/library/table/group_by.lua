-- group_by(rows, column): a map from each value of the column, as text, to its rows.
local rows, name = args[1], args[2] or kwargs.column
if type(rows) ~= "table" or type(name) ~= "string" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "group_by needs rows and the name of a column" }
end
local groups = {}
for _, row in ipairs(rows) do
    local value = row[name]
    local key = if value == nil or value == null then "" else tostring(value)
    groups[key] = groups[key] or {}
    table.insert(groups[key], row)
end
return groups
