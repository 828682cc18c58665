-- load(text): reads CSV text into memory and says what is there. Parsing is the table agent's work.
local text = args[1] or kwargs.text
local parsed = agent:delegate("table"):parse_csv(text, kw{ separator = kwargs.separator })
if not parsed.ok then
    return parsed
end
context.rows = parsed.value
local columns = agent:delegate("table"):columns(parsed.value)
return { rows = #parsed.value, columns = columns.value }
