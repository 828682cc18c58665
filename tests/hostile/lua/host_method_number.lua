-- expect: raised
-- A method that is a number.
return agent:delegate("x")[1]
