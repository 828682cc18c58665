local outcome = agent:delegate("calculator"):add(2, 3)
if not outcome.ok then
    error("the delegate failed: " .. outcome.error_message)
end
return outcome.value
