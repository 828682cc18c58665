return args[1] * args[2]
