local hoard = {}
while true do
    table.insert(hoard, string.rep("x", 100000) .. #hoard)
end
