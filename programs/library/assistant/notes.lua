-- notes(): everything that was written down, by topic.
return context.notes or {}
