-- to_csv(rows): the rows as CSV text, columns in alphabetical order. to_csv(rows, columns): these columns, so ordered.

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

local rows, columns = args[1], args[2] or kwargs.columns
if not are_rows(rows) or (columns ~= nil and not are_names(columns)) then
    return Outcome.error{ error_type = "invalid_argument", error_message = "to_csv needs rows, and columns as a list" }
end
if columns == nil then
    columns = {}
    for _, row in ipairs(rows) do
        for name in pairs(row) do
            if not table.find(columns, name) then
                table.insert(columns, name)
            end
        end
    end
    table.sort(columns)
end

local function cell_of(value)
    if value == nil or value == null then
        return ""
    end
    local text = tostring(value)
    if string.find(text, '[",\n]') then
        return '"' .. string.gsub(text, '"', '""') .. '"'
    end
    return text
end

local lines = {}
local names = {}
for index, name in ipairs(columns) do
    names[index] = cell_of(name)
end
table.insert(lines, table.concat(names, ","))
for _, row in ipairs(rows) do
    local cells = {}
    for index, name in ipairs(columns) do
        cells[index] = cell_of(row[name])
    end
    table.insert(lines, table.concat(cells, ","))
end
return table.concat(lines, "\n") .. "\n"
