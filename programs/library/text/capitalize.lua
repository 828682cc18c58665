-- capitalize(text): the first letter capital, the rest as it is.
local text = args[1]
if type(text) ~= "string" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "capitalize needs a text" }
end
if text == "" then
    return text
end
-- string.upper knows ASCII only; Latin, Greek and Cyrillic small letters lie 32 or 80 codes above their capitals.
local code = utf8.codepoint(text)
local accented = code >= 0xE0 and code <= 0xFE and code ~= 0xF7
local greek = code >= 0x3B1 and code <= 0x3C9 and code ~= 0x3C2
local cyrillic = code >= 0x430 and code <= 0x44F
if (code >= 97 and code <= 122) or accented or greek or cyrillic then
    code -= 32
elseif code >= 0x450 and code <= 0x45F then
    code -= 80
end
local second = utf8.offset(text, 2)
return utf8.char(code) .. string.sub(text, second)
