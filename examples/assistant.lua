-- An assistant that asks other agents. cadenza run examples/assistant.lua [QUESTION ...]
-- Runs on the embedded library, which knows sums, unit conversions, counting words and notes; with CADENZA_MODEL set, a
-- model answers anything. `ask` is a conversation: its program is written anew each time and never reused.

local assistant = Agent.for_role("assistant", { purpose = "answer everyday questions, with other agents' help" })
assistant:remember{ name = "Ada" }
assistant:note("rust", "ownership is checked at compile time")

local questions = if #args > 0 then args else {
    "Hello!",
    "What is 12 * (3 + 4)?",
    "Convert 10 km to miles.",
    "How many words are in the quick brown fox?",
    "What did I note about Rust?",
    "Why is the sky blue?",
}
for _, question in ipairs(questions) do
    local outcome = assistant:ask(question)
    print("> " .. question)
    print("  " .. (if outcome.ok then outcome.value else `{outcome.error_type}: {outcome.error_message}`))
end
