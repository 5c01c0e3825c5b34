"""From what the parsers of `renderers` found in a turn to what a harness may be shown."""

from __future__ import annotations

import json
from collections.abc import Sequence

from renderers import ParsedResponse, ParsedToolCall
from renderers.parsers import TOOL_PARSERS, ToolParser, get_tool_parser
from renderers.parsing import parse_gpt_oss

from mixharness.proxy.rendering.calls import KEYS, exact_arguments, runnable_call
from mixharness.proxy.rendering.turn import ParsedTurn, parsed_turn
from mixharness.proxy.tokenizer_adapter import TokenizerAdapter
from mixharness.proxy.tool_arguments import read_json

HARMONY_TOKENS = {
    "return_id": "<|return|>",
    "call_id": "<|call|>",
    "start_id": "<|start|>",
    "end_id": "<|end|>",
    "channel_id": "<|channel|>",
    "message_id": "<|message|>",
}
"""Markers of gpt-oss's channels, by the names its parser calls their ids."""

_RUNNABLE = ("ok", "invalid_json", "unknown_tool")
"""With an object as arguments: in formats without JSON, a value that is not JSON is plain text."""


def read_response(
    adapter: TokenizerAdapter, ids: Sequence[int], response: ParsedResponse
) -> ParsedTurn:
    """Return a turn; the attempts no harness could run become text, markers included.

    Args:
        adapter: of the tokenizer.
        ids: what the response was parsed from.
        response: what a parser of `renderers` made of it.
    """
    calls: list[tuple[str, str]] = []
    malformed: list[str] = []
    for attempt in response.tool_calls:
        call = _tool_call(attempt)
        if call is not None:
            calls.append(call)
            continue
        start, end = attempt.token_span or (0, 0)
        malformed.append(adapter.decode(ids[start:end]).strip() or attempt.raw)
    return parsed_turn(response.content, response.reasoning_content or "", calls, malformed)


def read_harmony(adapter: TokenizerAdapter, ids: Sequence[int]) -> ParsedTurn:
    """Return a turn written in gpt-oss's channels; it goes on after `<|start|>assistant`."""
    tokens = {name: adapter.convert_tokens_to_ids(t) for name, t in HARMONY_TOKENS.items()}
    whole = [*adapter.encode("<|start|>assistant"), *ids]
    response = parse_gpt_oss(
        adapter, whole, **tokens, constrain_id=-1
    )  # the parser has no use for it
    return read_response(adapter, whole, response)


def find_id_parser(
    adapter: TokenizerAdapter, ids: Sequence[int], call: tuple[str, str]
) -> ToolParser | None:
    """Return the parser of `renderers` that reads a call back from the ids it is written in."""
    for name in TOOL_PARSERS:
        parser = get_tool_parser(name, adapter)
        attempts = parser.extract(list(ids))[1]
        found = read_response(adapter, ids, ParsedResponse("", None, attempts)).tool_calls
        if [(name, json.loads(text)) for name, text in found] == [(call[0], json.loads(call[1]))]:
            return parser
    return None


def _tool_call(attempt: ParsedToolCall) -> tuple[str, str] | None:
    """Return name and exact arguments, or None for what no harness could run."""
    if attempt.status not in _RUNNABLE or not isinstance(attempt.name, str) or not attempt.name:
        return None
    if not isinstance(attempt.arguments, dict):
        return None
    found = (runnable_call(attempt.raw, key) for key in KEYS if f'"{key}"' in attempt.raw)
    exact = next((call[1] for call in found if call), None)
    arguments = exact or exact_arguments(attempt.raw, attempt.arguments)
    try:
        read_json(arguments)
    except ValueError:
        return None
    return attempt.name, arguments
