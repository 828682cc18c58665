-- word_frequencies(text): how often each word occurs; capitals and punctuation do not matter.
local text = args[1]
if type(text) ~= "string" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "word_frequencies needs a text" }
end
local counts = {}
for word in string.gmatch(string.lower(text), "[%a%d']+") do
    counts[word] = (counts[word] or 0) + 1
end
return counts
