return #history
