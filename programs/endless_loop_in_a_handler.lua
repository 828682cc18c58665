-- Tries to outlive the limit by catching its own end, again and again.
while true do
    pcall(function()
        while true do
        end
    end)
end
