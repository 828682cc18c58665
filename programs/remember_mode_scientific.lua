agent:remember{ mode = "scientific" }
return context.mode
