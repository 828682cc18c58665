-- expect: ok={"a":[1]}
-- Frozen tables are data.
return table.freeze({a = table.freeze({1})})
