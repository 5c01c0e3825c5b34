"""The scripted policy: an engine that plays each rollout's situation. What is played is data.

It sees what a policy sees, token ids, and says what the chat template would have it say.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence

from mixharness.builtin.scripted import ScriptedConfig, ScriptedEngine
from mixharness.certify.situations import Situation, Turn
from mixharness.certify.tools import Offered, offered_tools, tool_call
from mixharness.engine import GenerateRequest, Generation
from mixharness.proxy.chat import ChatMessage
from mixharness.proxy.renderer import ChatRenderer
from mixharness.types import VersionSpan

_LOGPROB = -1.0


class Part:
    """One rollout's situation, and how far it is.

    Attributes:
        seen: some prompt held what the situation wants to be seen.
    """

    def __init__(self, situation: Situation) -> None:
        self.seen = not situation.seen
        self._situation = situation
        self._said: dict[tuple[int, ...], Turn] = {}
        self._failed: set[tuple[int, ...]] = set()
        self._had_tools = False

    def next_turn(self, prompt_ids: tuple[int, ...], prompt: str, *, tools: bool = True) -> Turn:
        """Return what is said to a prompt; the same prompt always gets the same turn.

        Where tools were offered and are no more, turns that call one are left out.
        """
        situation = self._situation
        self.seen = self.seen or re.search(situation.seen, prompt) is not None
        cues = (turn for turn in situation.turns if turn.when and re.search(turn.when, prompt))
        cue = next(cues, None)
        if cue is not None:
            return cue
        self._had_tools = self._had_tools or tools
        silent = tuple(turn for turn in situation.in_order if not turn.calls)
        taken_away = self._had_tools and not tools
        turns = silent if taken_away and silent else situation.in_order
        at = min(len(self._said), len(turns) - 1)
        return self._said.setdefault(prompt_ids, turns[at])

    def fails(self, prompt_ids: tuple[int, ...], turn: Turn) -> bool:
        """Say whether the engine raises this time."""
        first = prompt_ids not in self._failed
        self._failed.add(prompt_ids)
        return turn.fails and first


class ScriptedPolicy(ScriptedEngine):
    """Plays parts by rollout id, with made-up log-probs."""

    def __init__(self, config: ScriptedConfig, parts: Mapping[str, Part], long_s: float) -> None:
        super().__init__(config)
        self._parts, self._long_s = parts, long_s
        self._renderer: ChatRenderer | None = None

    async def start(self) -> None:
        """Load the tokenizer and its chat template.

        Raises:
            TemplateError: no renderer can extend the template.
        """
        await super().start()
        self._renderer = ChatRenderer(self.tokenizer)

    async def generate(self, request: GenerateRequest) -> Generation:
        """Say the turn that the rollout's situation has for this prompt.

        Raises:
            RuntimeError: the situation wants the engine to fail.
            LookupError: the script needs a tool that is not offered.
        """
        prompt = self.tokenizer.tokenizer.decode(
            list(request.prompt_ids), skip_special_tokens=False
        )
        part = self._parts[request.session_id]
        tools = offered_tools(prompt)
        turn = part.next_turn(request.prompt_ids, prompt, tools=bool(tools))
        if part.fails(request.prompt_ids, turn):
            raise RuntimeError("the situation wants the engine to fail here")
        ids = self._ids(turn, tools)[: request.sampling.max_tokens]
        await asyncio.sleep(self._long_s if turn.slow else turn.wait_s)
        return Generation(
            ids=ids,
            logprobs=(_LOGPROB,) * len(ids),
            versions=(VersionSpan(self.policy_version, 0, len(ids)),),
            finish_reason="stop" if ids[-1] in request.sampling.stop_ids else "length",
        )

    def _ids(self, turn: Turn, tools: Sequence[Offered]) -> tuple[int, ...]:
        if self._renderer is None:
            raise RuntimeError("the engine is not started")
        calls = tuple(tool_call(call, tools) for call in turn.calls)
        if not (turn.text or turn.thinking or calls):
            # No template writes an empty answer, but a policy can sample one: the end at once.
            something = ChatMessage(role="assistant", content="a")
            return tuple(self._renderer.turn_ids(something)[-1:])
        message = ChatMessage(
            role="assistant", content=turn.text, reasoning=turn.thinking, tool_calls=calls
        )
        return tuple(self._renderer.turn_ids(message))
