-- words(text): its words, as they stand between blanks.
local text = args[1]
if type(text) ~= "string" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "words needs a text" }
end
local words = array{}
for word in string.gmatch(text, "%S+") do
    table.insert(words, word)
end
return words
