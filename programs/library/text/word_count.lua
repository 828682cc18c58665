-- word_count(text): how many words stand between blanks.
local text = args[1]
if type(text) ~= "string" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "word_count needs a text" }
end
local _, count = string.gsub(text, "%S+", "")
return count
