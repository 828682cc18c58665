-- expect: raised
-- An error that is the context.
error(context)
