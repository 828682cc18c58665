-- expect: ok=null
-- Nothing hidden in agents.
return rawget(agent, 1)
