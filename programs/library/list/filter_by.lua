-- filter_by(list, "above", 3): the numbers above 3. Comparisons: above, below, at_least, at_most, equal, not_equal.

-- A map is a table too.
local function is_list(value)
    return type(value) == "table" and (#value > 0 or next(value) == nil)
end

local list, comparison, limit = args[1], args[2], args[3]
if not is_list(list) or type(comparison) ~= "string" or #args < 3 then
    return Outcome.error{
        error_type = "invalid_argument",
        error_message = "filter_by needs a list, a comparison and a value",
    }
end
local keeps = {
    above = function(item) return item > limit end,
    below = function(item) return item < limit end,
    at_least = function(item) return item >= limit end,
    at_most = function(item) return item <= limit end,
    equal = function(item) return item == limit end,
    not_equal = function(item) return item ~= limit end,
}
local keep = keeps[comparison]
if keep == nil then
    return Outcome.error{
        error_type = "unknown_comparison",
        error_message = `filter_by does not know {comparison}: use above, below, at_least, at_most, equal or not_equal`,
    }
end
local kept = array{}
for index, item in ipairs(list) do
    if comparison ~= "equal" and comparison ~= "not_equal" and type(item) ~= type(limit) then
        return Outcome.error{
            error_type = "invalid_argument",
            error_message = `filter_by: item {index} cannot be compared`,
        }
    end
    if keep(item) then
        table.insert(kept, item)
    end
end
return kept
