return agent:delegate("calculator", { deliverable = { type = "string" } }):add(2, 3)
