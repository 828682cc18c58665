-- flatten(list): the items of the lists inside it, whatever their depth, in one list.
local list = args[1]
if type(list) ~= "table" then
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
