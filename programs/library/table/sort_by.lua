-- sort_by(rows, column): from small to large; equal rows keep their order. {descending = true}: from large to small.

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
        error_message = "sort_by needs rows and the name of a column",
    }
end
local keyed = {}
for index, row in ipairs(rows) do
    local key = row[name]
    if (type(key) ~= "number" and type(key) ~= "string") or type(key) ~= type(rows[1][name]) then
        local message = `sort_by: {name} must be all numbers or all texts, but row {index} has neither`
        return Outcome.error{ error_type = "invalid_argument", error_message = message }
    end
    keyed[index] = { key = key, place = index, row = row }
end
local descending = kwargs.descending
table.sort(keyed, function(a, b)
    if a.key == b.key then
        return a.place < b.place
    end
    if descending then
        return a.key > b.key
    end
    return a.key < b.key
end)
local sorted = array{}
for index, item in ipairs(keyed) do
    sorted[index] = item.row
end
return sorted
