return agent:tool("calculator"):add(2, 3).value
