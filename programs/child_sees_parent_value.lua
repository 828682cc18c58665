-- A delegate has a context of its own: it does not see its parent's.
context.value = 1
local child = agent:delegate("notebook")
return child:responds_to("value")
