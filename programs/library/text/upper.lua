-- upper(text): in capital letters. Latin, Greek and Cyrillic letters beyond ASCII are capitalised too.
local text = args[1]
if type(text) ~= "string" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "upper needs a text" }
end
local letters = {}
for _, code in utf8.codes(text) do
    local accented = code >= 0xE0 and code <= 0xFE and code ~= 0xF7
    local greek = code >= 0x3B1 and code <= 0x3C9 and code ~= 0x3C2
    local cyrillic = code >= 0x430 and code <= 0x44F
    if (code >= 97 and code <= 122) or accented or greek or cyrillic then
        code -= 32
    elseif code >= 0x450 and code <= 0x45F then
        code -= 80
    end
    table.insert(letters, utf8.char(code))
end
return table.concat(letters)
