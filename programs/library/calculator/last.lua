-- last(): the value of the latest successful call of this agent; last(2): of the one before it.
local back = args[1] or 1
if type(back) ~= "number" or back < 1 or back % 1 ~= 0 then
    return Outcome.error{ error_type = "invalid_argument", error_message = "last needs a whole number from 1" }
end
for index = #history, 1, -1 do
    local earlier = history[index]
    if earlier.ok and earlier.method ~= "last" then
        back -= 1
        if back == 0 then
            -- Large values stay behind a reference.
            return if earlier.value_ref then content(earlier.value_ref) else earlier.value
        end
    end
end
return Outcome.error{ error_type = "no_history", error_message = "there is no earlier result that far back" }
