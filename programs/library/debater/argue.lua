-- argue(topic, {side = "pro" or "contra", round = n, previous = text}): one argument. It comes from a small stock of
-- sentences that fit any topic; a model would think about the topic itself.
local topic = args[1] or kwargs.topic
local side, round = kwargs.side or "pro", kwargs.round or 1
if type(topic) ~= "string" or type(round) ~= "number" or round % 1 ~= 0 then
    return Outcome.error{ error_type = "invalid_argument", error_message = "argue needs a topic, a side and a round" }
end
local stock = {
    pro = {
        `The strongest case for "{topic}" is what it makes possible that was not possible before.`,
        `Those who tried "{topic}" rarely want to go back, and that is evidence worth having.`,
        `The costs of "{topic}" fall with experience, while its benefits add up.`,
    },
    contra = {
        `The case against "{topic}" begins with who pays for it when it goes wrong.`,
        `Much of what is promised for "{topic}" can be had by simpler means.`,
        `"{topic}" is easy to start and hard to stop, which is a reason to wait for evidence.`,
    },
}
local sentences = stock[side]
if sentences == nil then
    return Outcome.error{
        error_type = "unknown_side",
        error_message = `argue knows the sides pro and contra, not {side}`,
    }
end
local argument = sentences[(round - 1) % #sentences + 1]
if kwargs.previous and kwargs.previous ~= "" then
    argument = "I heard the other side. " .. argument
end
context.arguments = (context.arguments or 0) + 1
return argument
