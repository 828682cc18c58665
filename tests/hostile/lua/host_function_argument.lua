-- expect: raised
-- A function as an argument.
agent:delegate("x"):echo(function() end)
