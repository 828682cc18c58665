context.value = 99
while true do
end
