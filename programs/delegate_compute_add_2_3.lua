local calculator = agent:delegate("calculator")
return calculator:add(2, 3).value
