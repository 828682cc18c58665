-- memory_recall(): what the memory holds; 0 when nothing was stored yet (MR).
return context.memory or 0
