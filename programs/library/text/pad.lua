-- pad(text, width): blanks on the right up to that width. pad(text, width, {side = "left"}): on the left.
local text, width = args[1], args[2] or kwargs.width
if type(text) ~= "string" or type(width) ~= "number" or width < 0 or width > 1000 or width % 1 ~= 0 then
    return Outcome.error{ error_type = "invalid_argument", error_message = "pad needs a text and a width up to 1000" }
end
local blanks = string.rep(" ", math.max(0, width - utf8.len(text)))
if kwargs.side == "left" then
    return blanks .. text
end
return text .. blanks
