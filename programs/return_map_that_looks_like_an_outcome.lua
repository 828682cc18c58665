return { status = "error", value = 1, error_type = "execution", error_message = "only data", retriable = true }
