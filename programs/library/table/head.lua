-- head(rows): the first five rows. head(rows, n): the first n.

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

local rows, count = args[1], args[2] or kwargs.count or 5
if not are_rows(rows) or type(count) ~= "number" or count < 0 or count % 1 ~= 0 then
    return Outcome.error{
        error_type = "invalid_argument",
        error_message = "head needs rows, and how many as a whole number",
    }
end
local result = array{}
for index = 1, math.min(count, #rows) do
    result[index] = rows[index]
end
return result
