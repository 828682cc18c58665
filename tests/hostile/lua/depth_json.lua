-- expect: raised
-- Decoding a deeply nested text.
return json.decode(("["):rep(5000) .. ("]"):rep(5000))
