-- frequencies(list): how often each value occurs, by its text.

-- A map is a table too.
local function is_list(value)
    return type(value) == "table" and (#value > 0 or next(value) == nil)
end

local list = args[1]
if not is_list(list) then
    return Outcome.error{ error_type = "invalid_argument", error_message = "frequencies needs a list" }
end
local counts = {}
for index, item in ipairs(list) do
    if type(item) == "table" or item == null then
        return Outcome.error{
            error_type = "invalid_argument",
            error_message = `frequencies: item {index} is no plain value`,
        }
    end
    local name = tostring(item)
    counts[name] = (counts[name] or 0) + 1
end
return counts
