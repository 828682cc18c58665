-- frequencies(list): how often each value occurs, by its text.
local list = args[1]
if type(list) ~= "table" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "frequencies needs a list" }
end
local counts = {}
for index, item in ipairs(list) do
    if type(item) == "table" or item == null then
        return Outcome.error{ error_type = "invalid_argument", error_message = `frequencies: item {index} is no plain value` }
    end
    local name = tostring(item)
    counts[name] = (counts[name] or 0) + 1
end
return counts
