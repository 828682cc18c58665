-- lower(text): in small letters. Latin, Greek and Cyrillic letters beyond ASCII are changed too.
local text = args[1]
if type(text) ~= "string" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "lower needs a text" }
end
local letters = {}
for _, code in utf8.codes(text) do
    local accented = code >= 0xC0 and code <= 0xDE and code ~= 0xD7
    local greek = code >= 0x391 and code <= 0x3A9
    local cyrillic = code >= 0x410 and code <= 0x42F
    if (code >= 65 and code <= 90) or accented or greek or cyrillic then
        code += 32
    elseif code >= 0x400 and code <= 0x40F then
        code += 80
    end
    table.insert(letters, utf8.char(code))
end
return table.concat(letters)
