-- Tries to change what other programs rely on. Whether it may or not, they must not notice.
pcall(function()
    string.upper = function() return "poisoned" end
end)
pcall(function()
    getmetatable("").__index.upper = function() return "poisoned" end
end)
leaked = "poisoned"
return true
