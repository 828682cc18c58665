-- expect: raised
-- Writing past the agent's metatable.
rawset(agent, "role", "poisoned")
