-- Counts how many of 50 delegated calls succeed.
local succeeded = 0
for _ = 1, 50 do
    if agent:delegate("calculator"):add(2, 3).ok then
        succeeded += 1
    end
end
return succeeded
