-- count(list): how many items. count(list, value): how many of them equal the value.

-- A map is a table too.
local function is_list(value)
    return type(value) == "table" and (#value > 0 or next(value) == nil)
end

local list = args[1]
if not is_list(list) then
    return Outcome.error{ error_type = "invalid_argument", error_message = "count needs a list" }
end
if #args < 2 then
    return #list
end
local count = 0
for _, item in ipairs(list) do
    if item == args[2] then
        count += 1
    end
end
return count
