-- expect: raised
-- Looking for the primitives behind the prelude.
return host.call(0, "add", 0, {}, {})
