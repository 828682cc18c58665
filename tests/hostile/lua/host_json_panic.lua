-- expect: raised | ok
-- Odd JSON.
return json.decode("\0")
