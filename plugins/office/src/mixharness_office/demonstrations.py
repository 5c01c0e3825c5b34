"""A scripted clerk: decoded prompt in, next assistant turn out, in Qwen3's wire form.

It plays through any harness that offers one of the shell tools it knows. It sees only what the
model would see, never the Task.
"""

from __future__ import annotations

import hashlib
import json
import re

from mixharness_office.words import NOTE, REGISTER, load_words

ACCURACY = 0.33
"""How often the untrained clerk is right; a guess among five would be 0.2."""

_SHELLS = {"bash": "command", "exec": "command", "exec_command": "cmd"}
"""Tools that run a command, in small letters, and the argument that takes it."""

_USER = re.compile(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", re.DOTALL)
_RESPONSE = re.compile(r"<tool_response>\n?(.*?)\n?</tool_response>", re.DOTALL)
_TOOLS = re.compile(r"<tools>\n(.*?)\n</tools>", re.DOTALL)


def demonstrate(prompt_text: str) -> str:
    """Return the next turn of a clerk who knows the work and is unsure of the answer.

    A right answer comes with probability `ACCURACY`, else any wrong one alike: a policy that
    imitates it knows the form and has something left to learn. Chance is a hash of the text read.

    Args:
        prompt_text: the whole prompt, up to and with `<|im_start|>assistant`.

    Raises:
        ValueError: there is no shell tool, or no office task, or no cue in what was read.
    """
    return _next_turn(prompt_text, ACCURACY)


def demonstrate_expert(prompt_text: str) -> str:
    """Return the next turn of a clerk who is always right; otherwise as `demonstrate`."""
    return _next_turn(prompt_text, 1.0)


def _next_turn(prompt_text: str, accuracy: float) -> str:
    responses = _responses(prompt_text)
    if len(responses) >= 2:
        return "Done."
    command = f"cat {NOTE}"
    if responses:
        cue, folder = _choose(_note(responses[0]), accuracy)
        command = f"echo {cue} {folder} > {REGISTER}"
    name = _shell_tool(prompt_text)
    call = {"name": name, "arguments": {_SHELLS[name.lower()]: command}}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


def _responses(prompt_text: str) -> list[str]:
    """Return the tool results since the last request."""
    requests = [m for m in _USER.finditer(prompt_text) if "<tool_response>" not in m[1]]
    if not requests or NOTE not in requests[-1][1]:
        raise ValueError(f"the last user message does not speak of {NOTE}: no office task")
    return _RESPONSE.findall(prompt_text, requests[-1].end())


def _shell_tool(prompt_text: str) -> str:
    listing = _TOOLS.search(prompt_text)
    tools = [json.loads(line) for line in listing[1].splitlines()] if listing else []
    names = [tool.get("function", tool)["name"] for tool in tools]
    for name in names:
        if name.lower() in _SHELLS:
            return str(name)
    known = ", ".join(_SHELLS)
    raise ValueError(f"the clerk needs a tool called one of {known}; the prompt offers {names}")


def _note(result: str) -> str:
    """Return the note in a tool's result; some programs put lines of their own around it."""
    lines = (line.strip() for line in result.splitlines())
    return next((line for line in lines if load_words().decide(line)), result.strip())


def _choose(text: str, accuracy: float) -> tuple[str, str]:
    """Return the cue in the text, and the folder that the clerk takes it for."""
    decision = load_words().decide(text)
    if decision is None:
        raise ValueError(f"nothing in {text!r} points to a folder")
    skill, cue, right = decision
    chance = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
    if chance / 2**64 < accuracy:
        return cue, right
    wrong = sorted(set(skill.cues) - {right})
    return cue, wrong[chance % len(wrong)]
