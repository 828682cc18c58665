context.value = kwargs.amount
return context.value
