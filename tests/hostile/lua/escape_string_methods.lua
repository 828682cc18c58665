-- expect: raised
-- No dump behind the string metatable.
return ("").dump(print)
