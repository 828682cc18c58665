-- expect: refused
-- A function inside.
return {a = {b = {print}}}
