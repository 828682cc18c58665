-- title(text): every word with a capital first letter, the rest of it small.
local text = args[1]
if type(text) ~= "string" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "title needs a text" }
end

-- string.upper knows ASCII only; Latin, Greek and Cyrillic small letters lie 32 or 80 codes above their capitals.
local function capital(code)
    local accented = code >= 0xE0 and code <= 0xFE and code ~= 0xF7
    local greek = code >= 0x3B1 and code <= 0x3C9 and code ~= 0x3C2
    local cyrillic = code >= 0x430 and code <= 0x44F
    if (code >= 97 and code <= 122) or accented or greek or cyrillic then
        return code - 32
    end
    return if code >= 0x450 and code <= 0x45F then code - 80 else code
end

local function small(code)
    local accented = code >= 0xC0 and code <= 0xDE and code ~= 0xD7
    local greek = code >= 0x391 and code <= 0x3A9
    local cyrillic = code >= 0x410 and code <= 0x42F
    if (code >= 65 and code <= 90) or accented or greek or cyrillic then
        return code + 32
    end
    return if code >= 0x400 and code <= 0x40F then code + 80 else code
end

local letters, at_start = {}, true
for _, code in utf8.codes(text) do
    table.insert(letters, utf8.char(if at_start then capital(code) else small(code)))
    at_start = code == 32 or code == 9 or code == 10
end
return table.concat(letters)
