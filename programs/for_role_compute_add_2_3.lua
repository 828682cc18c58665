local calculator = Agent.for_role("calculator")
return calculator:add(2, 3).value
