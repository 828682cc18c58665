-- head(rows): the first five rows. head(rows, n): the first n.
local rows, count = args[1], args[2] or kwargs.count or 5
if type(rows) ~= "table" or type(count) ~= "number" or count < 0 or count % 1 ~= 0 then
    return Outcome.error{ error_type = "invalid_argument", error_message = "head needs rows, and how many as a whole number" }
end
local result = array{}
for index = 1, math.min(count, #rows) do
    result[index] = rows[index]
end
return result
