-- expect: refused | raised
-- nil and something that is no message.
return nil, print
