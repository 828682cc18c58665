local value = array{}
for _ = 1, 200 do
    value = { value }
end
return value
