-- expect: time | memory | host_calls
-- Errors of outcomes, swallowed.
while true do pcall(Outcome.error{error_message = ("x"):rep(100000)}.unwrap) end
