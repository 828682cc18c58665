return string.upper(args[1])
