return Outcome.error{ error_type = "low_utility", error_message = "nothing useful was found", retriable = true }
