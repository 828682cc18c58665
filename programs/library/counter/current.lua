-- current(): the count so far; 0 before anything was counted.
return context.value or 0
