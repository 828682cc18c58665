local total = 0
for _, number in ipairs(args[1]) do
    total += number
end
return total
