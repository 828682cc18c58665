-- expect: ok
-- Replacing the agent by a table.
agent = {role = "poisoned"}
