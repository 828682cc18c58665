-- expect: raised
-- A method whose name is not text.
return agent:delegate("x"):call("\255")
