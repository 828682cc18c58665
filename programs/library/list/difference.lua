-- difference(a, b): the values of a that are not in b.
local left, right = args[1], args[2]
if type(left) ~= "table" or type(right) ~= "table" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "difference needs two lists" }
end
local rest = array{}
for _, item in ipairs(left) do
    if not table.find(right, item) then
        table.insert(rest, item)
    end
end
return rest
