-- expect: refused
-- An agent.
return agent
