-- intersection(a, b): the values of a that are in b too, each once.
local left, right = args[1], args[2]
if type(left) ~= "table" or type(right) ~= "table" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "intersection needs two lists" }
end
local common = array{}
for _, item in ipairs(left) do
    if table.find(right, item) and not table.find(common, item) then
        table.insert(common, item)
    end
end
return common
