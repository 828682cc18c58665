-- expect: raised
-- An error that claims to be a timeout.
error("program stopped after 1000 ms of CPU time")
