return "Hello, " .. kwargs.name .. "!"
