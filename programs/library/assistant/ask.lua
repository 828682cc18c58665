-- ask(question): finds out which agent can answer, and asks it: sums, unit conversions, counting words, and what
-- note() wrote down. It knows these few forms of question; a model would understand any.
local question = args[1] or kwargs.question
if type(question) ~= "string" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "ask needs a question" }
end
local asked = agent:delegate("text"):lower(string.match(question, "^%s*(.-)[%s?.!]*$")).value

if asked == "hello" or asked == "hi" then
    return agent:delegate("greeter"):greet(context.name or "there")
end

local value, from, to = string.match(asked, "^convert%s+(-?[%d.]+)%s*(%S+)%s+to%s+(%S+)$")
if tonumber(value) then
    local converted = agent:delegate("converter"):convert(tonumber(value), from, to)
    return if converted.ok then `{value} {from} is {converted.value} {to}` else converted
end

local counted = string.match(asked, "^how many words are in (.+)$")
if counted then
    local words = agent:delegate("text"):word_count(counted)
    return if words.ok then `{words.value} words` else words
end

local topic = string.match(asked, "^what did i note about (.+)$")
if topic then
    local notes = context.notes or {}
    return if notes[topic] then notes[topic] else `you noted nothing about {topic}`
end

local expression = string.match(asked, "^what is (.+)$") or asked
local computed = agent:delegate("calculator"):evaluate(expression)
if computed.ok then
    return `{expression} is {computed.value}`
end
return Outcome.error{
    error_type = "not_understood",
    error_message = "this assistant answers: what is 2 * 3, convert 10 km to miles, how many words are in ..., "
        .. "what did I note about ...; configure a model for anything else",
}
