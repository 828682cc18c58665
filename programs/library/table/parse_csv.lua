-- parse_csv(text): the rows as maps from column name to value; the first line names the columns.
-- Cells in quotes may hold separators, line breaks and doubled quotes. Cells that look like numbers become numbers.
local text, separator = args[1], kwargs.separator or ","
if type(text) ~= "string" or type(separator) ~= "string" or #separator ~= 1 then
    return Outcome.error{
        error_type = "invalid_argument",
        error_message = "parse_csv needs a text, and a separator of one letter",
    }
end

local records, record, cell = {}, {}, {}
local quoted, was_quoted = false, false

local function end_cell()
    local value = table.concat(cell)
    if not was_quoted then
        value = string.match(value, "^%s*(.-)%s*$")
        if string.match(value, "^%-?%d+$") or string.match(value, "^%-?%d+%.%d+$") then
            value = tonumber(value)
        end
    end
    table.insert(record, value)
    cell, was_quoted = {}, false
end

local function end_record()
    end_cell()
    if #record > 1 or record[1] ~= "" then
        table.insert(records, record)
    end
    record = {}
end

local position = 1
while position <= #text do
    local character = string.sub(text, position, position)
    if quoted and character == '"' and string.sub(text, position + 1, position + 1) == '"' then
        table.insert(cell, '"')
        position += 1
    elseif character == '"' then
        quoted, was_quoted = not quoted, true
    elseif quoted then
        table.insert(cell, character)
    elseif character == separator then
        end_cell()
    elseif character == "\n" then
        end_record()
    elseif character ~= "\r" then
        table.insert(cell, character)
    end
    position += 1
end
if quoted then
    return Outcome.error{ error_type = "invalid_csv", error_message = "a quote is never closed" }
end
end_record()

local names = table.remove(records, 1) or {}
local rows = array{}
for _, values in ipairs(records) do
    if #values ~= #names then
        return Outcome.error{
            error_type = "invalid_csv",
            error_message = `row {#rows + 1} has {#values} cells, but there are {#names} columns`,
        }
    end
    local row = {}
    for index, name in ipairs(names) do
        row[tostring(name)] = values[index]
    end
    table.insert(rows, row)
end
return rows
