-- Looks into a CSV file through an agent that remembers it: cadenza run examples/csv_explorer.lua [FILE]
-- Runs on the embedded library; with CADENZA_MODEL set, a model writes the methods, and you may call any other.

local path = args[1] or fs.beside("data/sales.csv")

local explorer = Agent.for_role("csv explorer", { purpose = "answer questions about the CSV text that was loaded" })
local loaded = explorer:load(fs.read(path)):unwrap()
print(`{path}: {loaded.rows} rows with {table.concat(loaded.columns, ", ")}`)

print(`total amount: {explorer:total("amount").value}`)
local means = explorer:average("amount", kw{ by = "city" }):unwrap()
local cities = {}
for city in means do
    table.insert(cities, city)
end
table.sort(cities)
for _, city in cities do
    print(string.format("average in %s: %.2f", city, means[city]))
end

print("the three largest sales:")
for _, row in ipairs(explorer:top("amount", 3):unwrap()) do
    print(string.format("  %s %-6s %-12s %8.2f", row.date, row.city, row.product, row.amount))
end

local teapots = {}
for _, row in ipairs(explorer:filter("product", "teapot"):unwrap()) do
    table.insert(teapots, row.units)
end
print("teapots: " .. table.concat(teapots, ", "))

-- A question that cannot be answered is an Outcome with a type, not an error.
local outcome = explorer:total("colour")
print(`total of colour: {outcome.error_type} - {outcome.error_message}`)
