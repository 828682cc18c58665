return agent:delegate("digger", { max_delegation_depth = 0 }):dig()
