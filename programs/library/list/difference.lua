-- difference(a, b): the values of a that are not in b.

-- A map is a table too.
local function is_list(value)
    return type(value) == "table" and (#value > 0 or next(value) == nil)
end

local left, right = args[1], args[2]
if not is_list(left) or not is_list(right) then
    return Outcome.error{ error_type = "invalid_argument", error_message = "difference needs two lists" }
end
local rest = array{}
for _, item in ipairs(left) do
    if not table.find(right, item) then
        table.insert(rest, item)
    end
end
return rest
