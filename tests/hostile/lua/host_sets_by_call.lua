-- expect: ok=7
-- A setter called by name.
agent:call("value=", 7)
return context.value
