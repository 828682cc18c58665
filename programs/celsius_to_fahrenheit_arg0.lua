return args[1] * 9 / 5 + 32
