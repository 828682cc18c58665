return (args[1] - 32) * 5 / 9
