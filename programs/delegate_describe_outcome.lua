local outcome = agent:delegate("calculator"):add(2, 3)
return { ok = outcome.ok, error_type = outcome.error_type or "none" }
