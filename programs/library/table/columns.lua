-- columns(rows): the names of all columns, in alphabetical order.
local rows = args[1]
if type(rows) ~= "table" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "columns needs rows" }
end
local names = array{}
for _, row in ipairs(rows) do
    for name in pairs(row) do
        if not table.find(names, name) then
            table.insert(names, name)
        end
    end
end
table.sort(names)
return names
