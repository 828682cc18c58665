-- replace(text, old, new): every `old` becomes `new`. Nothing in `old` has a special meaning.
local text = args[1]
local old, new = args[2] or kwargs.old, args[3] or kwargs.new or ""
if type(text) ~= "string" or type(old) ~= "string" or type(new) ~= "string" or old == "" then
    return Outcome.error{
        error_type = "invalid_argument",
        error_message = "replace needs a text, the old part and the new one",
    }
end
return table.concat(string.split(text, old), new)
