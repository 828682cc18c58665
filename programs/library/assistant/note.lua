-- note(topic, text): writes something down; ask("what did I note about TOPIC?") reads it back.
local topic, text = args[1] or kwargs.topic, args[2] or kwargs.text
if type(topic) ~= "string" or type(text) ~= "string" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "note needs a topic and a text" }
end
local notes = context.notes or {}
notes[agent:delegate("text"):lower(topic).value] = text
context.notes = notes
return text
