-- range(to), range(from, to), range(from, to, step): the numbers from one to the other, both included.
local from, to, step = 1, args[1], args[3] or 1
if #args >= 2 then
    from, to = args[1], args[2]
end
if type(from) ~= "number" or type(to) ~= "number" or type(step) ~= "number" or step == 0 then
    return Outcome.error{
        error_type = "invalid_argument",
        error_message = "range needs numbers, and a step that is not zero",
    }
end
if (to - from) / step > 10000 then
    return Outcome.error{ error_type = "out_of_range", error_message = "range makes at most 10000 numbers" }
end
local numbers = array{}
local count = math.floor((to - from) / step)
for index = 0, count do
    table.insert(numbers, from + index * step)
end
return numbers
