return agent.role
