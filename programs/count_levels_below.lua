local below = agent:delegate("digger"):dig()
if not below.ok then
    return 0
end
return below.value + 1
