-- count(): how many rows were loaded.
return #(context.rows or array{})
