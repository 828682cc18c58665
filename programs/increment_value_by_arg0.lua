context.value = (context.value or 0) + args[1]
return context.value
