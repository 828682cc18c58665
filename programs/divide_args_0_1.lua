if args[2] == 0 then
    error("the divisor is zero")
end
return args[1] / args[2]
