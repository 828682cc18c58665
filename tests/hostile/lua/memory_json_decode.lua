-- expect: raised | memory | time | refused
-- Decoding a text that is too long.
return json.decode("[" .. ("1,"):rep(1000000) .. "1]")
