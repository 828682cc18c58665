-- verdict(topic, transcript): which side used more different words, and how many. This judge counts, it does not
-- weigh: a model would read the arguments.
local topic, transcript = args[1], args[2]
if type(topic) ~= "string" or type(transcript) ~= "table" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "verdict needs a topic and a transcript" }
end
local counts, seen = {}, {}
for _, turn in ipairs(transcript) do
    counts[turn.side] = counts[turn.side] or 0
    for word in string.gmatch(string.lower(turn.argument), "%a+") do
        local key = turn.side .. ":" .. word
        if not seen[key] then
            seen[key] = true
            counts[turn.side] += 1
        end
    end
end
local winner, most = "nobody", 0
for side, count in pairs(counts) do
    if count > most then
        winner, most = side, count
    elseif count == most then
        winner = "nobody"
    end
end
local reason = `{winner} used more different words`
if winner == "nobody" then
    reason = "both sides used equally many different words"
end
return { winner = winner, different_words = counts, reason = reason }
