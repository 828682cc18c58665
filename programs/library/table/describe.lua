-- describe(rows): for every column how many values it has, and for numbers their sum, mean, min and max.

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
    return Outcome.error{ error_type = "invalid_argument", error_message = "describe needs rows" }
end
local columns = {}
for _, row in ipairs(rows) do
    for name, value in pairs(row) do
        local column = columns[name] or { count = 0, kind = type(value) }
        columns[name] = column
        column.count += 1
        if column.kind ~= type(value) then
            column.kind = "mixed"
        end
        if column.kind == "number" then
            column.sum = (column.sum or 0) + value
            column.min = math.min(column.min or value, value)
            column.max = math.max(column.max or value, value)
        end
    end
end
local result = {}
for name, column in pairs(columns) do
    if column.kind == "number" then
        result[name] = {
            kind = "number",
            count = column.count,
            sum = column.sum,
            mean = column.sum / column.count,
            min = column.min,
            max = column.max,
        }
    else
        local kinds = { string = "text", boolean = "truth value", mixed = "mixed" }
        result[name] = { kind = kinds[column.kind] or "structure", count = column.count }
    end
end
return result
