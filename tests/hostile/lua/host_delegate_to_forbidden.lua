-- expect: raised
-- A refusal by the host.
agent:delegate("forbidden")
