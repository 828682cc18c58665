-- debate(topic, rounds): makes two debaters and a judge, lets the debaters answer each other, returns the transcript
-- and the verdict. Two rounds when no number is given.
local topic, rounds = args[1] or kwargs.topic, args[2] or kwargs.rounds or 2
if type(topic) ~= "string" or topic == "" then
    return Outcome.error{ error_type = "invalid_argument", error_message = "debate needs a topic" }
end
if type(rounds) ~= "number" or rounds < 1 or rounds > 5 or rounds % 1 ~= 0 then
    return Outcome.error{
        error_type = "invalid_argument",
        error_message = "debate: rounds must be a whole number from 1 to 5",
    }
end

local debaters = {
    pro = agent:delegate("debater", { purpose = "argue for the topic" }),
    contra = agent:delegate("debater", { purpose = "argue against the topic" }),
}
local transcript = array{}
local previous = ""
for round = 1, rounds do
    for _, side in { "pro", "contra" } do
        local argument = debaters[side]:argue(topic, kw{ side = side, round = round, previous = previous })
        if not argument.ok then
            return argument
        end
        previous = argument.value
        table.insert(transcript, { round = round, side = side, argument = previous })
    end
end

local verdict = agent:delegate("judge", { purpose = "weigh both sides" }):verdict(topic, transcript)
if not verdict.ok then
    return verdict
end
context.debates = (context.debates or 0) + 1
return { topic = topic, transcript = transcript, verdict = verdict.value }
