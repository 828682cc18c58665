-- factorial(n): 1 * 2 * ... * n, for n from 0 to 170 (171! is beyond any number a program can return).
local number = args[1]
if type(number) ~= "number" or number % 1 ~= 0 then
    return Outcome.error{ error_type = "invalid_argument", error_message = "factorial needs a whole number" }
end
if number < 0 or number > 170 then
    return Outcome.error{ error_type = "out_of_range", error_message = "factorial answers from 0 to 170" }
end
local product = 1
for factor = 2, number do
    product *= factor
end
return product
