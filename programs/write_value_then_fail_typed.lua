context.value = 99
return Outcome.error{ error_type = "low_utility", error_message = "written, then refused" }
