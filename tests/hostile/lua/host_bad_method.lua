-- expect: raised | ok
-- A method whose name is odd.
return agent:delegate("x")["a b\0c"]() == nil
