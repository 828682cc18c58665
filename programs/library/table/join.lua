-- join(left, right, column): each left row with the columns of the right rows that agree in that column.
-- Left rows without a partner are left out; a column that both have keeps the left value.

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

local left, right, name = args[1], args[2], args[3] or kwargs.on
if not are_rows(left) or not are_rows(right) or type(name) ~= "string" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "join needs two lists of rows and a column" }
end
local joined = array{}
for _, mine in ipairs(left) do
    for _, theirs in ipairs(right) do
        if mine[name] ~= nil and mine[name] == theirs[name] then
            local row = table.clone(theirs)
            for column, value in pairs(mine) do
                row[column] = value
            end
            table.insert(joined, row)
        end
    end
end
return joined
