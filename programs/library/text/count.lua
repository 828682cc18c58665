-- count(text, part): how often the part occurs, without overlaps.
local text, part = args[1], args[2] or kwargs.part
if type(text) ~= "string" or type(part) ~= "string" or part == "" then
    return Outcome.error{
        error_type = "invalid_argument",
        error_message = "count needs a text and the part to count in it",
    }
end
local count, position = 0, 1
while true do
    local start, stop = string.find(text, part, position, true)
    if start == nil then
        return count
    end
    count += 1
    position = stop + 1
end
