-- select(rows, {"name", "age"}): the same rows with these columns only.

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

-- A list of texts.
local function are_names(value)
    if type(value) ~= "table" or (#value == 0 and next(value) ~= nil) then
        return false
    end
    for _, name in ipairs(value) do
        if type(name) ~= "string" then
            return false
        end
    end
    return true
end

local rows, names = args[1], args[2] or kwargs.columns
if not are_rows(rows) or not are_names(names) then
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
