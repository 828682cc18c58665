-- expect: raised
-- Changing the history.
history[1] = "poisoned"
