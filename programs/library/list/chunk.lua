-- chunk(list, size): the list in pieces of that size; the last one may be shorter.
local list, size = args[1], args[2] or kwargs.size
if type(list) ~= "table" or type(size) ~= "number" or size < 1 or size % 1 ~= 0 then
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
