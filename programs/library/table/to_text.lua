-- to_text(rows): a table to read, columns aligned. to_text(rows, columns): these columns, so ordered.

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
    return Outcome.error{ error_type = "invalid_argument", error_message = "to_text needs rows, and columns as a list" }
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

local lines = { {}, {} }
for index, name in ipairs(columns) do
    local width = utf8.len(name)
    local cells = {}
    for number, row in ipairs(rows) do
        local value = row[name]
        cells[number] = if value == nil or value == null then "" else tostring(value)
        width = math.max(width, utf8.len(cells[number]))
    end
    lines[1][index] = name .. string.rep(" ", width - utf8.len(name))
    lines[2][index] = string.rep("-", width)
    for number, row in ipairs(rows) do
        local blanks = string.rep(" ", width - utf8.len(cells[number]))
        lines[number + 2] = lines[number + 2] or {}
        -- Numbers stand on the right, everything else on the left.
        local on_the_right = type(row[name]) == "number"
        lines[number + 2][index] = if on_the_right then blanks .. cells[number] else cells[number] .. blanks
    end
end
local texts = {}
for number, cells in ipairs(lines) do
    texts[number] = (string.gsub(table.concat(cells, "  "), "%s+$", ""))
end
return table.concat(texts, "\n")
