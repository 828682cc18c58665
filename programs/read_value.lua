return context.value
