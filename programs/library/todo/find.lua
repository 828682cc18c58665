-- find(text): the items whose title contains the text; capital letters do not matter.
local wanted = args[1] or kwargs.text
if type(wanted) ~= "string" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "find needs a text" }
end
wanted = string.lower(wanted)
local found = array{}
for _, item in ipairs(context.items or array{}) do
    if string.find(string.lower(item.title), wanted, 1, true) then
        table.insert(found, item)
    end
end
return found
