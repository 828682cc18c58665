-- expect: raised
-- An error whose message is no text.
error({message = {}})
