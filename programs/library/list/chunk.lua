-- chunk(list, size): the list in pieces of that size; the last one may be shorter.

-- A map is a table too.
local function is_list(value)
    return type(value) == "table" and (#value > 0 or next(value) == nil)
end

local list, size = args[1], args[2] or kwargs.size
if not is_list(list) or type(size) ~= "number" or size < 1 or size % 1 ~= 0 then
    return Outcome.error{ error_type = "invalid_argument", error_message = "chunk needs a list and a size" }
end
local chunks = array{}
for index, item in ipairs(list) do
    if (index - 1) % size == 0 then
        table.insert(chunks, {})
    end
    table.insert(chunks[#chunks], item)
end
return chunks
