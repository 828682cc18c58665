local first = agent:delegate("breaker"):work()
if first.ok then
    return "the first delegate did not fail"
end
return agent:delegate("calculator"):add(2, 3).value
