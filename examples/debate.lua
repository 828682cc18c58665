-- Agents that make agents: a moderator makes two debaters and a judge. cadenza run examples/debate.lua [TOPIC]
-- Runs on the embedded library, whose debaters have a few sentences for any topic; with CADENZA_MODEL set, a model
-- writes the programs. The deliverable is checked either way: what comes back has this shape, or is an error.

local topic = if #args > 0 then table.concat(args, " ") else "remote work"

local moderator = Agent.for_role("moderator", {
    purpose = "hold a short, fair debate between two debaters, and let a judge decide",
    deliverable = {
        type = "object",
        required = { "topic", "transcript", "verdict" },
        properties = {
            transcript = { type = "array", items = { type = "object", required = { "round", "side", "argument" } } },
            verdict = { type = "object", required = { "winner", "reason" } },
        },
    },
})

local outcome = moderator:debate(topic, 2)
if not outcome.ok then
    error(`no debate: {outcome.error_type}: {outcome.error_message}`)
end

print("Topic: " .. outcome.value.topic)
for _, turn in ipairs(outcome.value.transcript) do
    print(`  {turn.round}. {turn.side}: {turn.argument}`)
end
local verdict = outcome.value.verdict
print(`Winner: {verdict.winner} ({verdict.reason})`)
