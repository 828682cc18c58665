-- lines(text): its lines, without the line breaks. A break at the very end makes no further line.
local text = args[1]
if type(text) ~= "string" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "lines needs a text" }
end
local lines = array{}
for line in string.gmatch(text, "([^\n]*)\n?") do
    table.insert(lines, (string.gsub(line, "\r$", "")))
end
-- The pattern meets the empty end of the text once more.
if lines[#lines] == "" then
    table.remove(lines)
end
return lines
