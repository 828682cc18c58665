-- expect: raised
-- Order by address.
for k in pairs({[{}] = 1, [{}] = 2}) do end
