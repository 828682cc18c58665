local keys = array{}
for key in pairs(args[1]) do
    table.insert(keys, key)
end
return keys
