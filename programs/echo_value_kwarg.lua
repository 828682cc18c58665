return kwargs.value
