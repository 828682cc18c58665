-- find(text): the items whose title contains the text; capital letters do not matter.
local wanted = args[1] or kwargs.text
if type(wanted) ~= "string" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "find needs a text" }
end

-- string.lower knows ASCII only; Latin, Greek and Cyrillic capitals lie 32 or 80 codes below their small letters.
local function small(title)
    local letters = {}
    for _, code in utf8.codes(title) do
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
end

wanted = small(wanted)
local found = array{}
for _, item in ipairs(context.items or array{}) do
    if string.find(small(item.title), wanted, 1, true) then
        table.insert(found, item)
    end
end
return found
