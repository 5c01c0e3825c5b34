"""What the turns of a chat template look like, found out by rendering marked ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mixharness.errors import TemplateError
from mixharness.proxy.chat import ChatMessage, ToolCall

# Lone surrogates cannot come from outside, so these are found wherever a template puts them.
MARK = "\ud801"
_THOUGHT = "\ud802"
USER = ChatMessage(role="user", content="a")
MARKED = ChatMessage(role="assistant", content=MARK)
_TAG = re.compile(r"(<[^<>|\s]+>|\[[A-Z_]+\])\s*\Z")

Render = Callable[..., str]
"""(messages, prompt=False) to text; raises what the template raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """The fixed texts of a template's turns."""

    end: str
    """The token that ends a conversation's last turn."""
    middle_end: str
    """The token that ends a turn which something follows; gpt-oss has another one."""
    call_end: str
    """The token that ends a turn which calls tools."""
    prompt: str
    """A rendering of one user message, generation prompt included."""
    past: str
    """The same up to the text of a turn that is no longer the last."""
    reasoning: tuple[str, str] = ("", "")
    """What stands before and after reasoning."""
    no_reasoning: str = ""
    """What a policy writes that does not reason after a prompt which opened the reasoning."""
    parallel: bool = False
    """Several calls may stand in one turn."""


def dissect(render: Render, control: re.Pattern[str], template_text: str) -> Anatomy:
    """Return a template's anatomy.

    Args:
        render: renders shaped messages.
        control: matches every token that is more than text.
        template_text: searched for reasoning tags that the template only ever drops.

    Raises:
        TemplateError: no token ends a turn, or a turn does not begin where a prompt ends.
    """
    end, _ = _end(render, control, (USER, MARKED))
    middle_end, past = _end(render, control, (USER, MARKED, USER))
    prompt = render([USER], prompt=True)
    if not (prompt.startswith(past) or past.startswith(prompt)):
        raise TemplateError("a past turn does not begin with what the generation prompt begins")
    opening, between = _reasoning(render, prompt)
    if not opening and "</think>" in template_text:
        opening, between = "<think>", "\n</think>\n\n"
    closing = between.removesuffix(past.removeprefix(prompt)).strip()
    opened = prompt.removeprefix(past) if prompt.startswith(past) else ""
    return Anatomy(
        end=end,
        middle_end=middle_end,
        call_end=_call_end(render, control, end),
        prompt=prompt,
        past=past,
        reasoning=(opening, closing) if opening and closing else ("", ""),
        no_reasoning=between if opened and closing not in opened else "",
        parallel=_parallel(render),
    )


def calling(names: Sequence[tuple[str, str]]) -> ChatMessage:
    """Return a turn that calls tools, marked in the last call's argument.

    Args:
        names: (call id, tool name) of each call.
    """
    calls = [ToolCall(id=i, name=name, arguments=f'{{"a": "{MARK}"}}') for i, name in names]
    return ChatMessage(role="assistant", tool_calls=tuple(calls))


def following(message: ChatMessage) -> list[ChatMessage]:
    """Return tool results that may follow a turn: before a user's message reasoning is dropped."""
    calls = message.tool_calls or (ToolCall(id="call00001", name="a", arguments="{}"),)
    return [
        ChatMessage(role="tool", tool_call_id=call.id, name=call.name, content="a")
        for call in calls
    ]


def _end(
    render: Render, control: re.Pattern[str], messages: Sequence[ChatMessage]
) -> tuple[str, str]:
    """Return the token right after a marked turn, and what stands before the turn's text."""
    text = render(messages)
    match = control.match(text, text.find(MARK) + 1)
    if MARK not in text or not match:
        raise TemplateError("no token ends a turn in the chat template")
    return match.group(), text[: text.find(MARK)]


def _call_end(render: Render, control: re.Pattern[str], end: str) -> str:
    turn = calling([("call00001", "lookfunc")])
    try:
        text = render([USER, turn, *following(turn)])
    except Exception:  # a template without tools
        return end
    at = text.find(MARK) + 1
    match = control.search(text, at)
    return end if not at or end in text[at:] or not match else match.group()


def _parallel(render: Render) -> bool:
    turn = calling([("call00001", "lookfunc"), ("call00002", "waitfunc")])
    try:
        return render([USER, turn, *following(turn)]).count(MARK) == len(turn.tool_calls)
    except Exception:  # a template that takes one call at a time, or none
        return False


def _reasoning(render: Render, prompt: str) -> tuple[str, str]:
    """Return what opens reasoning, and all that stands between reasoning and text."""
    turn = replace(MARKED, reasoning=_THOUGHT)
    for after in (following(turn), []):
        try:
            before, thought, rest = render([USER, turn, *after]).partition(_THOUGHT)
        except Exception:  # not every template takes a result where nothing was called
            continue
        opened = _TAG.search(prompt)
        opening = before.removeprefix(prompt).strip() or (opened.group(1) if opened else "")
        if thought and before.startswith(prompt) and opening and MARK in rest:
            return opening, rest.partition(MARK)[0]
    return "", ""
