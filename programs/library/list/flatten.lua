-- flatten(list): the items of the lists inside it, whatever their depth, in one list.

-- A map is a table too.
local function is_list(value)
    return type(value) == "table" and (#value > 0 or next(value) == nil)
end

local list = args[1]
if not is_list(list) then
    return Outcome.error{ error_type = "invalid_argument", error_message = "flatten needs a list" }
end
local flat = array{}
local function walk(items)
    for _, item in ipairs(items) do
        if type(item) == "table" and (#item > 0 or next(item) == nil) then
            walk(item)
        else
            table.insert(flat, item)
        end
    end
end
walk(list)
return flat
