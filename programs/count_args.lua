return #args
