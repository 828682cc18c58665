-- aggregate(rows, {by = "city", column = "price", how = "mean"}): one number for each value of `by`.
-- How: count (the default without a column), sum (the default with one), mean, min, max.

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

local rows, by, column = args[1], args[2] or kwargs.by, args[3] or kwargs.column
local how = args[4] or kwargs.how or (if column then "sum" else "count")
if not are_rows(rows) or type(by) ~= "string" then
    return Outcome.error{
        error_type = "invalid_argument",
        error_message = "aggregate needs rows and a column to group by",
    }
end
if not table.find({ "count", "sum", "mean", "min", "max" }, how) then
    local message = `aggregate does not know {how}: use count, sum, mean, min or max`
    return Outcome.error{ error_type = "unknown_aggregate", error_message = message }
end
if how ~= "count" and type(column) ~= "string" then
    return Outcome.error{
        error_type = "invalid_argument",
        error_message = `aggregate: {how} needs a column of numbers`,
    }
end

local groups = {}
for index, row in ipairs(rows) do
    local value = row[by]
    local key = if value == nil or value == null then "" else tostring(value)
    local group = groups[key] or { count = 0, sum = 0, min = math.huge, max = -math.huge }
    groups[key] = group
    group.count += 1
    if how ~= "count" then
        local number = row[column]
        if type(number) ~= "number" then
            local message = `aggregate: {column} of row {index} is not a number`
            return Outcome.error{ error_type = "invalid_argument", error_message = message }
        end
        group.sum += number
        group.min = math.min(group.min, number)
        group.max = math.max(group.max, number)
    end
end
local result = {}
for key, group in pairs(groups) do
    group.mean = group.sum / group.count
    result[key] = group[how]
end
return result
