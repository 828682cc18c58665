return agent:delegate("calculator", { favourite_colour = "blue" }):add(2, 3).value
