-- reverse(text): the letters from last to first; letters of several bytes stay whole.
local text = args[1]
if type(text) ~= "string" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "reverse needs a text" }
end
local letters = {}
for _, code in utf8.codes(text) do
    table.insert(letters, 1, utf8.char(code))
end
return table.concat(letters)
