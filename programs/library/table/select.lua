-- select(rows, {"name", "age"}): the same rows with these columns only.
local rows, names = args[1], args[2] or kwargs.columns
if type(rows) ~= "table" or type(names) ~= "table" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "select needs rows and a list of columns" }
end
local result = array{}
for _, row in ipairs(rows) do
    local kept = {}
    for _, name in ipairs(names) do
        kept[name] = row[name]
    end
    table.insert(result, kept)
end
return result
