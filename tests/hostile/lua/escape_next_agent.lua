-- expect: ok=null
-- Nothing to iterate over in agents.
return (next(agent))
