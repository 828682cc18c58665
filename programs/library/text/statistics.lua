-- statistics(text): letters, words, lines, sentences, the longest word and the average word length.
local text = args[1]
if type(text) ~= "string" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "statistics needs a text" }
end
local words, letters_in_words, longest = 0, 0, ""
for word in string.gmatch(text, "[%a%d']+") do
    words += 1
    letters_in_words += #word
    if #word > #longest then
        longest = word
    end
end
local _, breaks = string.gsub(text, "\n", "")
local _, sentences = string.gsub(text, "[.!?]+", "")
local ends_in_break = text == "" or string.sub(text, -1) == "\n"
return {
    characters = utf8.len(text),
    words = words,
    lines = if ends_in_break then breaks else breaks + 1,
    sentences = sentences,
    longest_word = longest,
    average_word_length = if words == 0 then 0 else math.round(letters_in_words / words * 100) / 100,
}
