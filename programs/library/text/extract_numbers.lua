-- extract_numbers(text): every number in it, in order; a minus directly before a number belongs to it.
local text = args[1]
if type(text) ~= "string" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "extract_numbers needs a text" }
end
local numbers = array{}
local position = 1
while true do
    local start, stop = string.find(text, "%-?%d+", position)
    if start == nil then
        return numbers
    end
    local _, with_fraction = string.find(text, "^%.%d+", stop + 1)
    stop = with_fraction or stop
    table.insert(numbers, tonumber(string.sub(text, start, stop)))
    position = stop + 1
end
