"""Looks into a CSV file through an agent that remembers it: python examples/csv_explorer.py [FILE]

Runs on the embedded library; with CADENZA_MODEL set, a model writes the methods, and you may call any other.
"""

import sys
from pathlib import Path

from cadenza import Agent

path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "data" / "sales.csv"

explorer = Agent.for_role("csv explorer", purpose="answer questions about the CSV text that was loaded")
loaded = explorer.load(path.read_text(encoding="utf-8")).unwrap()
print(f"{path.name}: {loaded['rows']} rows with {', '.join(loaded['columns'])}")

print("total amount:", explorer.total("amount").value)
for city, mean in explorer.average("amount", by="city").unwrap().items():
    print(f"average in {city}: {mean:.2f}")

print("the three largest sales:")
for row in explorer.top("amount", 3).unwrap():
    print(f"  {row['date']} {row['city']:6} {row['product']:12} {row['amount']:8.2f}")

print("teapots:", [row["units"] for row in explorer.filter("product", "teapot").unwrap()])

# A question that cannot be answered is an Outcome with a type, not an exception.
outcome = explorer.total("colour")
print("total of colour:", outcome.error_type, "-", outcome.error_message)
