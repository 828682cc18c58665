-- is_zero(): whether nothing is counted.
return (context.value or 0) == 0
