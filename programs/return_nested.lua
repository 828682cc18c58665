return { name = "report", rows = { { id = 1, tags = { "a", "b" } }, { id = 2, tags = array{} } }, total = 2 }
