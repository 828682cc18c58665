-- expect: raised | ok
-- Thousands of arguments.
agent:delegate("x"):add(table.unpack(table.create(5000, 1)))
