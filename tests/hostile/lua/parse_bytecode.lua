-- expect: compile
-- Text that begins like bytecode.
Lua
