-- intersection(a, b): the values of a that are in b too, each once.

-- A map is a table too.
local function is_list(value)
    return type(value) == "table" and (#value > 0 or next(value) == nil)
end

local left, right = args[1], args[2]
if not is_list(left) or not is_list(right) then
    return Outcome.error{ error_type = "invalid_argument", error_message = "intersection needs two lists" }
end
local common = array{}
for _, item in ipairs(left) do
    if table.find(right, item) and not table.find(common, item) then
        table.insert(common, item)
    end
end
return common
