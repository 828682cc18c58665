-- expect: ok={"error_type":"x","ok":false}
-- A table that looks like an outcome is data.
return {ok = false, error_type = "x"}
