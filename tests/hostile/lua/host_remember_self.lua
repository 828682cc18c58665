-- expect: raised
-- Remembering an agent.
agent:remember{me = agent}
