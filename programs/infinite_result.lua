return { rows = { 1, 1 / 0 } }
