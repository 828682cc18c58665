-- expect: refused
-- A list with holes.
return {1, nil, 3}
