-- repeat_text(text, times): the text that many times, up to 10000 letters.
local text, times = args[1], args[2] or kwargs.times
if type(text) ~= "string" or type(times) ~= "number" or times < 0 or times % 1 ~= 0 then
    return Outcome.error{
        error_type = "invalid_argument",
        error_message = "repeat_text needs a text and how many times",
    }
end
if #text * times > 10000 then
    return Outcome.error{ error_type = "out_of_range", error_message = "repeat_text makes at most 10000 letters" }
end
return string.rep(text, times)
