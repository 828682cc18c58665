context.value = 99
context.half_done = true
error("boom after writing")
