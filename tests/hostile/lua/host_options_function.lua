-- expect: raised
-- Options with a function.
agent:delegate("x", {model = function() end})
