"""An assistant that asks other agents. python examples/assistant.py [QUESTION ...]

Runs on the embedded library, which knows sums, unit conversions, counting words and notes; with CADENZA_MODEL set, a
model answers anything. `ask` is a conversation: its program is written anew each time and never reused.
"""

import sys

from cadenza import Agent

assistant = Agent.for_role("assistant", purpose="answer everyday questions, with other agents' help")
assistant.remember(name="Ada")
assistant.note("rust", "ownership is checked at compile time")

questions = sys.argv[1:] or [
    "Hello!",
    "What is 12 * (3 + 4)?",
    "Convert 10 km to miles.",
    "How many words are in the quick brown fox?",
    "What did I note about Rust?",
    "Why is the sky blue?",
]
for question in questions:
    outcome = assistant.ask(question)
    print(f"> {question}")
    print(f"  {outcome.value if outcome.ok else f'{outcome.error_type}: {outcome.error_message}'}")
