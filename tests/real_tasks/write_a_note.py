"""A policy for the `scripted` engine: one file, written with whatever shell a harness offers.

    PYTHONPATH=tests/real_tasks mixharness rollout --tasks clawgym:TASKS --limit 5 \\
        --harness claude_code,openclaw --sandbox docker --engine scripted \\
        --set engine.script=write_a_note:policy --set engine.context=400000
"""

import json

from mixharness.certify.situations import Call
from mixharness.certify.tools import offered_tools, tool_call

COMMAND = "mkdir -p output && { pwd; ls -aR; } > output/note.txt"


def policy(prompt: str) -> str:
    """Return the assistant's turn for a decoded prompt of the `qwen3` family."""
    tools = offered_tools(prompt)
    if not tools or "<tool_response>" in prompt:
        return "The note is in output/note.txt."
    call = tool_call(Call(shell=COMMAND), tools)
    asked = json.dumps({"name": call.name, "arguments": json.loads(call.arguments)})
    return f"<tool_call>\n{asked}\n</tool_call>"
