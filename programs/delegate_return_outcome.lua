return agent:delegate("calculator"):add(2, 3)
