return { answer = function() return 42 end }
