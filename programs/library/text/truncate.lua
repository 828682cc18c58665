-- truncate(text, letters): at most that many letters; what was cut ends in "…". 50 when no number is given.
local text, limit = args[1], args[2] or kwargs.letters or 50
if type(text) ~= "string" or type(limit) ~= "number" or limit < 1 or limit % 1 ~= 0 then
    return Outcome.error{
        error_type = "invalid_argument",
        error_message = "truncate needs a text and a number of letters",
    }
end
if utf8.len(text) <= limit then
    return text
end
return string.sub(text, 1, utf8.offset(text, limit) - 1) .. "…"
