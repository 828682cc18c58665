return args[1]
