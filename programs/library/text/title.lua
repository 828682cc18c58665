-- title(text): every word with a capital first letter, the rest of it small.
local text = args[1]
if type(text) ~= "string" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "title needs a text" }
end
return (string.gsub(text, "(%S)(%S*)", function(first, rest)
    return string.upper(first) .. string.lower(rest)
end))
