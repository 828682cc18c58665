local function down(level)
    return 1 + down(level + 1)
end
return down(0)
