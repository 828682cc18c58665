"""Agents that make agents: a moderator makes two debaters and a judge. python examples/debate.py [TOPIC]

Runs on the embedded library, whose debaters have a few sentences for any topic; with CADENZA_MODEL set, a model writes
the programs. The deliverable is checked either way: what comes back has this shape, or is an error that says so.
"""

import sys

from cadenza import Agent

topic = " ".join(sys.argv[1:]) or "remote work"

moderator = Agent.for_role(
    "moderator",
    purpose="hold a short, fair debate between two debaters, and let a judge decide",
    deliverable={
        "type": "object",
        "required": ["topic", "transcript", "verdict"],
        "properties": {
            "transcript": {
                "type": "array",
                "items": {"type": "object", "required": ["round", "side", "argument"]},
            },
            "verdict": {"type": "object", "required": ["winner", "reason"]},
        },
    },
)

outcome = moderator.debate(topic, 2)
if not outcome.ok:
    sys.exit(f"no debate: {outcome.error_type}: {outcome.error_message}")

print("Topic:", outcome.value["topic"])
for turn in outcome.value["transcript"]:
    print(f"  {turn['round']}. {turn['side']}: {turn['argument']}")
verdict = outcome.value["verdict"]
print(f"Winner: {verdict['winner']} ({verdict['reason']})")
