-- greet(name): a greeting. greet(name, {language = "de"}): in English, German, French, Spanish or Italian.
local name, language = args[1] or kwargs.name or "world", kwargs.language or "en"
local greetings = { en = "Hello", de = "Hallo", fr = "Bonjour", es = "Hola", it = "Ciao" }
if type(name) ~= "string" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "greet needs a name" }
end
if greetings[language] == nil then
    local message = `greet knows de, en, es, fr and it, not {language}`
    return Outcome.error{ error_type = "unknown_language", error_message = message }
end
return `{greetings[language]}, {name}!`
