local list = {}
for index = 1, 100001 do
    list[index] = 1
end
return list
