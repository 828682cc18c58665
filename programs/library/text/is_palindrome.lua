-- is_palindrome(text): whether it reads the same backwards; only letters and digits count, capitals do not matter.
local text = args[1]
if type(text) ~= "string" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "is_palindrome needs a text" }
end
local letters = string.lower((string.gsub(text, "[^%a%d]", "")))
return letters == string.reverse(letters)
