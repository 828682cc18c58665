-- expect: raised
-- An error that is an agent.
error(agent)
