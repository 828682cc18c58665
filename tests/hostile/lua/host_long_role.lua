-- expect: ok | raised
-- A very long role.
return #agent:delegate(("r"):rep(100000)).role
