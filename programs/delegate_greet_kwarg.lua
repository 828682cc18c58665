local host = agent:delegate("greeter")
return host:greet(kw{ name = kwargs.name }).value
