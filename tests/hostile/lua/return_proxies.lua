-- expect: ok
-- All inputs at once are data.
return {args, kwargs, context, history}
