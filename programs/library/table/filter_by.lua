-- filter_by(rows, "city", "Paris"): the rows whose city is Paris.
-- filter_by(rows, "age", "above", 30): comparisons are above, below, at_least, at_most, equal, not_equal, contains.

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

local rows, name, comparison, wanted = args[1], args[2], "equal", args[3]
if #args >= 4 then
    comparison, wanted = args[3], args[4]
end
if not are_rows(rows) or type(name) ~= "string" or type(comparison) ~= "string" or #args < 3 then
    return Outcome.error{
        error_type = "invalid_argument",
        error_message = "filter_by needs rows, a column and a value",
    }
end
local keeps = {
    above = function(value) return value > wanted end,
    below = function(value) return value < wanted end,
    at_least = function(value) return value >= wanted end,
    at_most = function(value) return value <= wanted end,
    contains = function(value) return type(value) == "string" and string.find(value, wanted, 1, true) ~= nil end,
    equal = function(value) return value == wanted end,
    not_equal = function(value) return value ~= wanted end,
}
local keep = keeps[comparison]
if keep == nil then
    local names = "above, below, at_least, at_most, equal, not_equal, contains"
    return Outcome.error{
        error_type = "unknown_comparison",
        error_message = `filter_by does not know {comparison}: it knows {names}`,
    }
end
local any_kind = comparison == "equal" or comparison == "not_equal"
local kept = array{}
for _, row in ipairs(rows) do
    local value = row[name]
    -- A row without the column, or with another kind of value there, cannot be larger or smaller.
    if (any_kind or type(value) == type(wanted)) and keep(value) then
        table.insert(kept, row)
    end
end
return kept
