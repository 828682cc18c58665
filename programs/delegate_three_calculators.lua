local total = 0
for number = 1, 3 do
    total += agent:delegate("calculator"):add(number, 10).value
end
return total
