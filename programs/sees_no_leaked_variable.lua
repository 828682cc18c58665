return leaked == nil
