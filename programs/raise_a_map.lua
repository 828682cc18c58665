error({ code = 7, reason = "boom in a table" })
