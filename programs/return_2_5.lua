return 2.5
