-- expect: raised | host_calls | depth | time | ok
-- Programs that run programs that run programs.
local code = args[1]
local o = agent:delegate("x"):run(code, code)
if not o.ok then error(o.error_message) end
return o.value
