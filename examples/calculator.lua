-- A calculator that nobody programmed: its methods are written when they are first called.
--
-- Runs on the embedded library, without key and network. Set CADENZA_MODEL (for example to openai:gpt-5.1) and a model
-- writes the programs instead; nothing here changes. Run it with: cadenza run examples/calculator.lua

local calc = Agent.for_role("calculator")

calc.memory = 5 -- a setter: writes what the agent remembers, asks nobody
print(`5 + 3 = {calc:add(3).value}`)
print(`the memory is now {calc.memory}`)

print(`2 * (3 + 4) ^ 2 = {calc:evaluate("2 * (3 + 4) ^ 2").value}`)
print(`15 % of 80 = {calc:percent(15, 80).value}`)
print(`price with tax: {calc:evaluate("price * 1.2", kw{ price = 50 }).value}`)

-- Every call returns an Outcome; a failure is one too, with a type that a caller can act on.
local outcome = calc:divide(1, 0)
print(`1 / 0: {outcome.error_type} - {outcome.error_message}`)

-- The second call of a kind plays the kept program: no model, microseconds.
for _, numbers in { { 2, 3 }, { 20, 30 } } do
    outcome = calc:add(numbers[1], numbers[2])
    print(`{numbers[1]} + {numbers[2]} = {outcome.value} ({outcome.metadata.source})`)
end
