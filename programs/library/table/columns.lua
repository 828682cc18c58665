-- columns(rows): the names of all columns, in alphabetical order.

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

local rows = args[1]
if not are_rows(rows) then
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
